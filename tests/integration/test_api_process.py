"""The API as a process: it drains at once and can be killed; its answers and checks while a part is unavailable."""

import asyncio
import os
import shutil
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import httpx
import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure.api import health
from perdure.api.__main__ import DRAIN_SECONDS, server_config
from perdure.api.app import create_app
from perdure.api.health import WRITE_VALID_SECONDS, FailedWrites, Parts
from perdure.local import DataParts
from perdure.local.ports import free_port, is_free
from perdure.settings import Settings
from perdure.store import status as write_probes
from perdure.store.status import write_fault
from perdure.temporal import status as write_probe
from tests.conftest import Person, Urls, as_owner
from tests.doubles.tcp_link import TcpLink
from tests.eventually import until
from tests.integration.conftest import Api, Caller, serving
from tests.integration.test_api_access import operator
from tests.integration.test_api_turns import conversation, refusal
from tests.integration.test_sse_resume import reading
from tests.integration.turn_writer import Sent, TurnWriter, text_of

ROOT = Path(__file__).parents[2]
READERS = 25


@dataclass
class ApiProcess:
    """The API process, which can be ended and started again on the same port."""

    environ: dict[str, str]
    url: str
    process: Process | None = None

    async def start(self) -> None:
        command = (sys.executable, "-m", "perdure.api")
        self.process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=self.environ)
        async with httpx.AsyncClient(base_url=self.url) as client:

            async def is_ready() -> bool:
                assert self.process is not None and self.process.returncode is None, "the API did not start"
                return (await client.get("/readyz")).status_code == 200

            await until(is_ready, every=0.1, despite=(httpx.TransportError,))

    async def end(self, number: signal.Signals) -> float:
        assert self.process is not None
        began = time.monotonic()
        if self.process.returncode is None:
            self.process.send_signal(number)
        await asyncio.wait_for(self.process.wait(), 20)
        return time.monotonic() - began


def first_metrics_port() -> int:
    """A number whose ports for the API's metrics (+ 12) and its Temporal client's (+ 13) are free."""
    for _ in range(50):
        first = free_port()
        if is_free(first + 12) and is_free(first + 13):
            return first
    raise AssertionError("no free pair of ports")


def environment(parts: DataParts, urls: Urls, port: int, **given: str) -> dict[str, str]:
    assert parts.redis_url is not None and parts.temporal is not None
    return {
        **os.environ, "DATABASE_URL": urls.app, "REDIS_URL": parts.redis_url,
        "TEMPORAL_ADDRESS": parts.temporal.address, "TEMPORAL_NAMESPACE": parts.temporal.namespace,
        "TEMPORAL_CONFIG_FILE": os.devnull, "PERDURE_PORT": str(port), "LOG_LEVEL": "warning",
        "RATE_LIMITING_ENABLED": "0", **given,
    }  # fmt: skip


@asynccontextmanager
async def served_with(parts: DataParts, urls: Urls, **given: str) -> AsyncIterator[ApiProcess]:
    port = free_port()
    running = ApiProcess(environment(parts, urls, port, **given), f"http://127.0.0.1:{port}")
    await running.start()
    try:
        yield running
    finally:
        await running.end(signal.SIGKILL)


@pytest.fixture
async def api_process(parts: DataParts, urls: Urls) -> AsyncIterator[ApiProcess]:
    async with served_with(parts, urls) as running:
        yield running


def client_of(api_process: ApiProcess, person: Person) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=READERS + 5)
    head = {"Authorization": f"Bearer {person.token}"}
    return httpx.AsyncClient(base_url=api_process.url, headers=head, timeout=20, limits=limits)


async def follow(client: httpx.AsyncClient, path: str) -> list[Sent]:
    """Read to the end, coming back with the last id whenever the stream breaks."""
    got: list[Sent] = []
    async with asyncio.timeout(60):
        while not got or got[-1].kind != "workflow_complete":
            after = next((event.id for event in reversed(got) if event.id), None)
            try:
                async with reading(client, path, after) as stream:
                    try:
                        await stream.whole()
                    finally:
                        got += stream.sent
            except httpx.TransportError:
                await asyncio.sleep(0.1)
    return got


@pytest.mark.timed
@pytest.mark.parametrize("end", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.soak)])
async def test_readers_do_not_delay_a_drain_and_resume_without_gaps_or_repeats(
    api_process: ApiProcess, turn: TurnWriter, people: dict[str, Person], end: signal.Signals
) -> None:
    path = f"/v1/turns/{turn.address.turn_id}/events"
    async with client_of(api_process, people["requester"]) as client:
        readers = [asyncio.create_task(follow(client, path)) for _ in range(READERS)]
        await turn.claim("m1")
        text = ""
        for number in range(60):
            if number == 20:
                assert await api_process.end(end) < DRAIN_SECONDS
            if number == 40:
                await api_process.start()
            await turn.speak("m1", f"{number} ")
            text += f"{number} "
            await asyncio.sleep(0.02)
        await turn.settle("m1", text)
        await turn.finish()
        for sent in await asyncio.gather(*readers):
            assert text_of(sent) == text
            durable = [event.data["seq"] for event in sent if event.kind not in ("token", "workflow_complete")]
            assert durable == list(range(1, len(durable) + 1)), "no event twice, none missing, no reset needed"


def test_a_host_setting_that_opens_the_port_too_far_is_refused_by_name() -> None:
    hosts = [("PERDURE_HOST", "0.0.0.0"), ("PERDURE_HOST", "::")]
    for name, value in (*hosts, ("PERDURE_ALLOWED_HOSTS", "https://a.example"), ("PERDURE_PROXIES", "proxy.example")):
        settings = Settings(_env_file=None, **{name: value})  # type: ignore[arg-type]
        with pytest.raises(SystemExit) as refused:
            server_config(create_app(settings), settings)
        assert name in str(refused.value) and value in str(refused.value)


async def test_the_process_bounds_heads_and_connections_and_serves_its_metrics(parts: DataParts, urls: Urls) -> None:
    first = first_metrics_port()
    given = {"PERDURE_CONNECTIONS_PER_ADDRESS": "20", "PERDURE_METRICS_PORT": str(first), "FORWARDED_ALLOW_IPS": "*"}
    async with served_with(parts, urls, **given) as running:
        async with httpx.AsyncClient() as client:
            metrics = await client.get(f"http://127.0.0.1:{first + 12}/metrics")
            assert metrics.status_code == 200 and "perdure_front_door_total" in metrics.text
            assert "temporal_" in (await client.get(f"http://127.0.0.1:{first + 13}/metrics")).text
            assert (await client.get(f"{running.url}/metrics")).status_code == 401
            assert (await client.get(f"{running.url}/healthz", headers={"Host": "evil.example"})).status_code == 200
            assert (await client.get(f"{running.url}/sign-in", headers={"Host": "evil.example"})).status_code == 421
        wires = [await asyncio.open_connection("127.0.0.1", httpx.URL(running.url).port) for _ in range(25)]
        began = time.monotonic()
        heads = await asyncio.gather(*(reader.read() for reader, _ in wires))
        took = time.monotonic() - began
        for _, writer in wires:
            writer.close()
        assert sum(b"too_many_connections" in head for head in heads) >= 5
        assert 8 < took < 14, "a connection that sends nothing is closed after ten seconds"


@dataclass(frozen=True)
class LinkedApi:
    api: Api
    postgres: TcpLink
    valkey: TcpLink
    temporal: TcpLink


def through(url: str, link: TcpLink) -> str:
    parsed = urlsplit(url)
    login = parsed.netloc.rpartition("@")[0]
    return urlunsplit(parsed._replace(netloc=f"{login}@127.0.0.1:{link.port}"))


async def link_to(address: str) -> TcpLink:
    """Connects to an address, or to that of a URL."""
    host, _, port = address.rpartition("@")[2].partition("/")[0].rpartition(":")
    return await TcpLink(host, int(port)).open()


@dataclass(frozen=True, slots=True)
class TwoApis:
    """Two API processes, as far as callers can tell, over one Valkey behind a link."""

    one: Api
    other: Api
    valkey: TcpLink


@asynccontextmanager
async def two_apis(parts: DataParts, urls: Urls, people: dict[str, Person], **settings: str) -> AsyncIterator[TwoApis]:
    assert parts.redis_url is not None
    valkey = await link_to(parts.redis_url)
    settings["REDIS_URL"] = through(parts.redis_url, valkey)
    async with serving(parts, urls, people, **settings) as one, serving(parts, urls, people, **settings) as other:
        yield TwoApis(one, other, valkey)
    await valkey.cut()


@pytest.fixture(scope="module")
async def linked_api(parts: DataParts, urls: Urls, people: dict[str, Person]) -> AsyncIterator[LinkedApi]:
    assert parts.redis_url is not None and parts.temporal is not None
    postgres, valkey = await link_to(urls.app), await link_to(parts.redis_url)
    temporal = await link_to(parts.temporal.address)
    given = {"DATABASE_URL": through(urls.app, postgres), "REDIS_URL": through(parts.redis_url, valkey)}
    async with serving(parts, urls, people, temporal=f"127.0.0.1:{temporal.port}", **given) as api:
        yield LinkedApi(api, postgres, valkey, temporal)
    for link in (postgres, valkey, temporal):
        await link.cut()


def assert_unavailable(answer: httpx.Response) -> None:
    assert refusal(answer) == (503, "store_unavailable"), answer.text
    assert int(answer.headers["retry-after"]) > 0


@pytest.mark.timed
async def test_without_postgres_everything_is_503_with_a_time_to_come_back(linked_api: LinkedApi) -> None:
    async with linked_api.api.client() as client:
        conversation_id = await conversation(client)
        await linked_api.postgres.cut()
        began = time.monotonic()
        assert_unavailable(await client.post("/v1/conversations", json={"agent": "refunds"}))
        path = f"/v1/conversations/{conversation_id}"
        assert_unavailable(await client.post(f"{path}/turns", json={"message": "hello"}))
        assert_unavailable(await client.get(f"{path}/stream"))
        assert time.monotonic() - began < 5
        assert (await client.get("/readyz")).status_code == 503
        assert (await client.get("/healthz")).status_code == 200
        await linked_api.postgres.mend()
        assert (await client.get(path)).status_code == 200

        async def is_ready() -> bool:
            return (await client.get("/readyz")).status_code == 200

        await until(is_ready, 3)


@pytest.mark.parametrize("fault", ["cut", "stalled"])
async def test_an_operator_gets_the_status_without_postgres_and_without_the_workload(
    linked_api: LinkedApi, fault: str
) -> None:
    async with operator(linked_api.api) as client:
        assert (await client.get("/v1/status")).json()["is_workload_known"] is True
        if fault == "stalled":
            linked_api.postgres.stall()
        else:
            await linked_api.postgres.cut()
        answer = await client.get("/v1/status")
        await linked_api.postgres.cut()
        await linked_api.postgres.mend()
        assert answer.status_code == 200, answer.text
        found = answer.json()
        parts = {each["name"]: each for each in found["parts"]}
        assert parts["postgres"]["fault"] and not parts["valkey"]["fault"]
        assert parts["relay"]["note"] and not parts["relay"]["fault"], "it was not checked"
        assert (found["is_workload_known"], found["well"], found["turns"]) == (False, False, [])
        assert found["queues"]
        assert (await client.get("/v1/status")).json()["is_workload_known"] is True


@pytest.mark.timed
async def test_a_silent_postgres_is_503_within_seconds(linked_api: LinkedApi) -> None:
    async with linked_api.api.client() as client:
        await client.get("/v1/turns")
        linked_api.postgres.stall()
        began = time.monotonic()
        assert_unavailable(await client.get("/v1/turns"))
        assert time.monotonic() - began < 14
        await linked_api.postgres.cut()
        await linked_api.postgres.mend()
        assert (await client.get("/v1/turns")).status_code == 200


@pytest.mark.parametrize(("broken", "mended"), [
    ("ALTER TABLE perdure.conversations RENAME TO gone", "ALTER TABLE perdure.gone RENAME TO conversations"),
    ("ALTER TABLE perdure.conversations RENAME id TO a", "ALTER TABLE perdure.conversations RENAME a TO id"),
    ("REVOKE SELECT ON perdure.conversations FROM perdure_app", "GRANT SELECT ON perdure.conversations TO perdure_app"),
    ("ALTER TABLE perdure.users RENAME TO gone", "ALTER TABLE perdure.gone RENAME TO users"),  # read with each token
], ids=["missing", "altered", "revoked", "no users"])  # fmt: skip
async def test_a_table_that_cannot_be_read_is_503_for_programs_pages_and_readers(
    api: Api, urls: Urls, broken: str, mended: str
) -> None:
    async with api.client() as client, as_owner(urls.owner) as owner:
        conversation_id = await conversation(client)
        path = f"/v1/conversations/{conversation_id}"
        await owner.execute(broken)
        try:
            for each in (path, f"{path}/stream", "/v1/conversations"):
                assert_unavailable(await client.get(each))
            page = await client.get(f"/chat/{conversation_id}")
            assert (page.status_code, int(page.headers["retry-after"]) > 0) == (503, True)
        finally:
            await owner.execute(mended)
        assert (await client.get(path)).status_code == 200


@pytest.mark.timed
async def test_a_turn_accepted_without_temporal_is_durable_and_left_to_the_relay(linked_api: LinkedApi) -> None:
    async with linked_api.api.client() as client:
        conversation_id = await conversation(client)

        async def ready() -> bool:
            return (await client.get("/readyz")).status_code == 200

        await linked_api.temporal.cut()
        began = time.monotonic()
        accepted = await client.post(f"/v1/conversations/{conversation_id}/turns", json={"message": "/echo later"})
        assert accepted.status_code == 202
        assert time.monotonic() - began < 5
        assert (await client.get("/readyz")).status_code == 503
        async with linked_api.api.client("reviewer") as reviewer:
            began = time.monotonic()
            status = (await reviewer.get("/v1/status")).json()
            assert time.monotonic() - began < 8
        assert "temporal" in [each["name"] for each in status["parts"] if each["fault"]] and status["queues"] == []
        assert not status["well"] and [each["status"] for each in status["turns"]] == ["accepted"]
        await linked_api.temporal.mend()
        await until(ready)
        left = await linked_api.api.rows("SELECT kind FROM outbox WHERE turn_id = $1", accepted.json()["turn_id"])
        assert [row["kind"] for row in left] == ["start"]


@pytest.mark.timed
async def test_without_valkey_the_api_stays_ready_and_turns_are_accepted(linked_api: LinkedApi) -> None:
    async with linked_api.api.client() as client:
        await linked_api.valkey.cut()
        assert (await client.get("/readyz")).status_code == 200
        conversation_id = await conversation(client)
        began = time.monotonic()
        accepted = await client.post(f"/v1/conversations/{conversation_id}/turns", json={"message": "/echo hi"})
        assert accepted.status_code == 202
        assert (await client.post(f"/v1/turns/{accepted.json()['turn_id']}/stop")).status_code == 202
        assert time.monotonic() - began < 3
        async with client.stream("GET", f"/v1/turns/{accepted.json()['turn_id']}/events") as stream:
            assert "event: ready" in await anext(stream.aiter_text())
        await linked_api.valkey.mend()


def parts_of(api: Api, home: Path | None = None, least_free_bytes: int = 0) -> Parts:
    return Parts(api.services.db, api.services.notifier.client, api.services.valkey, home, least_free_bytes)


async def faults(parts: Parts) -> dict[str, str]:
    return {name: part.fault for name, part in (await parts.check()).items()}


async def written_at(urls: Urls) -> object:
    async with as_owner(urls.admin.rpartition("/")[0] + "/" + urls.app.rpartition("/")[2]) as admin:
        return await admin.fetchval("SELECT at FROM write_probes WHERE tenant_id = '*'")


async def test_parts_that_are_well_have_no_fault_and_were_written(api: Api, urls: Urls, temporal: Client) -> None:
    parts = parts_of(api)
    before, began = await written_at(urls), time.monotonic()
    assert await faults(parts) == {"postgres": "", "temporal": "", "valkey": ""}
    first = await written_at(urls)
    assert first is not None and first != before
    found = await asyncio.gather(*(parts.check() for _ in range(500)))
    assert all(each is found[0] for each in found), "many looks at once are one"
    assert await written_at(urls) == first, "a write speaks for seconds"
    assert time.monotonic() - began < WRITE_VALID_SECONDS


async def test_a_write_that_a_read_only_postgres_rejects_counts_at_once(api: Api, visitor: Caller, urls: Urls) -> None:
    """Makes every new transaction read-only, as a provider does whose disk is full."""
    name = urls.app.rpartition("/")[2]
    admin = await asyncpg.connect(urls.admin)
    parts = parts_of(api)
    parts.failed_writes = api.services.parts.failed_writes

    async def well() -> bool:
        ready = await visitor.get("/readyz")
        return (ready.status_code, ready.json()) == (200, {"ready": True}) and not (await faults(parts))["postgres"]

    try:
        await until(well)  # its own look has written a moment ago, which speaks for seconds
        await admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        await api.services.db.pool.expire_connections()
        async with api.client() as client:
            assert_unavailable(await client.post("/v1/conversations", json={"agent": "general"}))
        assert (await faults(parts))["postgres"]
        ready = await visitor.get("/readyz")
        assert (ready.status_code, ready.json()) == (503, {"ready": False})
        await asyncio.sleep(WRITE_VALID_SECONDS)
        assert (await faults(parts))["postgres"], "no check has written since"
    finally:
        await admin.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
        await api.services.db.pool.expire_connections()
        await admin.close()
    await until(well, 10)


async def test_a_check_of_postgres_takes_new_blocks_of_its_disk(api: Api, urls: Urls) -> None:
    taken = "SELECT temp_bytes FROM pg_stat_database WHERE datname = current_database()"
    async with as_owner(urls.owner) as owner:
        before = await owner.fetchval(taken)

        async def has_taken() -> bool:  # Postgres counts them a little later
            await write_probes.write_once(api.services.db)
            return bool(await owner.fetchval(taken) >= before + (1 << 20))

        await until(has_taken)


async def test_the_disk_of_the_local_data_folder_is_checked(api: Api, tmp_path: Path) -> None:
    assert (await faults(parts_of(api, tmp_path)))["disk"] == ""
    assert (await faults(parts_of(api, tmp_path / "missing")))["disk"], "writing there fails"
    more_than_there_is = shutil.disk_usage(tmp_path).total + 1
    assert (await faults(parts_of(api, tmp_path, more_than_there_is)))["disk"]
    assert "disk" not in await faults(parts_of(api, None, more_than_there_is))


@dataclass
class Refusing:
    """A Temporal that answers one kind of request with an error, and the others with nothing."""

    status: RPCStatusCode
    message: str
    method: str = "update_task_queue_config"
    after_seconds: float = 0.0

    def __getattr__(self, name: str) -> object:
        async def answer(*_: object, **__: object) -> None:
            if name == self.method:
                await asyncio.sleep(self.after_seconds)
                raise RPCError(self.message, self.status, b"")

        return answer


@pytest.mark.parametrize(("status", "message", "seconds"), [
    ("UNAVAILABLE", "shard status unknown", 0),
    ("UNKNOWN", "something went wrong, please retry (1f0c)", 0),
    ("UNAVAILABLE", "no error reaches a caller in time, because the client repeats such a call", 10),
])  # fmt: skip
async def test_a_start_that_temporal_cannot_store_counts_at_once(
    api: Api, monkeypatch: pytest.MonkeyPatch, status: str, message: str, seconds: float
) -> None:
    refusing = Refusing(RPCStatusCode[status], message, "start_workflow_execution", seconds)
    parts = api.services.parts
    async with api.client() as client:
        conversation_id = await conversation(client)
        with monkeypatch.context() as patched:
            patched.setattr(type(api.services.notifier.client), "workflow_service", refusing)
            accepted = await client.post(f"/v1/conversations/{conversation_id}/turns", json={"message": "/echo hi"})
            assert accepted.status_code == 202
            await until(lambda: parts.failed_writes.recent_fault("temporal"))
            assert (await faults(parts))["temporal"], "a successful check of now outweighs it"
        stored = await client.post(f"/v1/conversations/{await conversation(client)}/turns", json={"message": "hi"})
        for turn_id in (accepted.json()["turn_id"], stored.json()["turn_id"]):
            await client.post(f"/v1/turns/{turn_id}/stop")

    async def well() -> bool:
        return not (await faults(parts))["temporal"]

    await until(well, 10)


@pytest.mark.parametrize(("status", "message", "is_fault"), [
    ("PERMISSION_DENIED", "Request unauthorized.", False),
    ("UNIMPLEMENTED", "unknown method UpdateTaskQueueConfig", False),
    ("INVALID_ARGUMENT", "UpdateTaskQueueConfig is not supported in this namespace", False),
    ("INVALID_ARGUMENT", "database is locked (5) (SQLITE_BUSY)", True),  # of the embedded server, as are all its errors
    ("INVALID_ARGUMENT", "attempt to write a readonly database (8)", True),
    ("INVALID_ARGUMENT", "something new", True),
    ("INVALID_ARGUMENT", "open /data/temporal.db-wal: permission denied", True),
    ("INVALID_ARGUMENT", "UpdateTaskQueueUserData failed: operation not permitted", True),
    ("INVALID_ARGUMENT", "SQL logic error: triggers disabled", True),
    ("PERMISSION_DENIED", "unable to open database file: permission denied (14)", True),
    ("PERMISSION_DENIED", "cannot execute UPDATE in a read-only transaction", True),
    ("UNAVAILABLE", "Failed to commit transaction. Error: database or disk is full (13)", True),
    ("NOT_FOUND", "Namespace default is not found.", True),
])  # fmt: skip
async def test_a_forbidden_write_is_noted_and_a_failed_one_is_a_fault(
    api: Api, monkeypatch: pytest.MonkeyPatch, status: str, message: str, is_fault: bool
) -> None:
    refusing = Refusing(RPCStatusCode[status], message)
    monkeypatch.setattr(type(api.services.notifier.client), "workflow_service", refusing)
    parts = parts_of(api)
    for _ in range(2):
        look = (await parts.check())["temporal"]
        assert (bool(look.fault), bool(look.note)) == (is_fault, not is_fault)


def test_each_kind_of_outage_has_its_own_code() -> None:
    kinds = asyncpg.DiskFullError, asyncpg.CannotConnectNowError, asyncpg.TooManyConnectionsError
    of_postgres = [write_fault(kind("x")) for kind in (*kinds, asyncpg.UndefinedTableError, TimeoutError)]
    assert all(of_postgres) and len(set(of_postgres)) == 5 and "UndefinedTableError" in of_postgres[3]
    assert write_fault(ConnectionRefusedError()) == of_postgres[4]
    full = RPCError("UpdateTaskQueueUserData failed: database or disk is full", RPCStatusCode.UNAVAILABLE, b"")
    busy = RPCError("too many", RPCStatusCode.RESOURCE_EXHAUSTED, b"")
    locked = RPCError("database is locked (5) (SQLITE_BUSY)", RPCStatusCode.INVALID_ARGUMENT, b"")
    silent = RPCError("connection refused", RPCStatusCode.UNAVAILABLE, b"")
    of_temporal = [write_probe.write_fault(error) for error in (full, busy, locked, silent, TimeoutError())]
    assert all(of_temporal) and len(set(of_temporal)) == 5
    broken, lost = (
        write_probe.write_fault(RPCError(text, RPCStatusCode.UNKNOWN, b""))
        for text in ("something went wrong, please retry (1f0c)", "transport error: broken pipe")
    )
    assert lost == of_temporal[3] and broken not in of_temporal
    known = RPCError("workflow of the tenant read-only not found", RPCStatusCode.NOT_FOUND, b"")
    assert not write_probe.storage_fault(known), "an id can contain any word"


@pytest.mark.parametrize(("events", "red_seconds"), [
    pytest.param("f0", 5, id="one failure"),
    pytest.param("f0 c1 f4 f8", 5, id="its report can be of a write before the check"),
    pytest.param("f0 c1 f14", 60, id="no check sees it"),
    pytest.param("f0 c1 f14 f50", 60, id="it lasts"),
    pytest.param("f0 c1 f14 s15", 5, id="a start is stored"),
    pytest.param("f0 c1 x12 f14", 5, id="a check sees it"),
    pytest.param("f0 c1 f14 x15", 5, id="a check sees it later"),
    pytest.param("f0 c1 f70", 5, id="another one"),
])  # fmt: skip
def test_a_check_that_does_not_see_a_fault_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch, events: str, red_seconds: float
) -> None:
    failed, clock = FailedWrites(), [0.0]
    monkeypatch.setattr(health, "monotonic", lambda: clock[-1])
    for event in events.split():
        clock.append(float(event[1:]))
        if event[0] == "f":
            ends = clock[-1] + red_seconds
            failed.record_temporal(TimeoutError())
        elif event[0] == "s":
            failed.record_start()
        else:
            failed.record_check("temporal", clock[-1], wrote=event[0] == "c")
    clock.append(ends - 0.1)
    assert failed.recent_fault("temporal")
    clock.append(ends)
    assert not failed.recent_fault("temporal")


async def test_a_failed_write_of_a_check_is_tried_again_once_a_second(
    api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tries = list[float]()

    async def write_once(_: object) -> None:
        tries.append(time.monotonic())
        raise RPCError("database is locked", RPCStatusCode.INVALID_ARGUMENT, b"")

    monkeypatch.setattr(write_probe, "write_once", write_once)
    parts, began = parts_of(api), time.monotonic()
    while time.monotonic() < began + 2.5:
        assert (await faults(parts))["temporal"]
    assert len(tries) > 1, "it is tried again"
    assert all(at >= began + number for number, at in enumerate(tries)), "a busy machine delays one, none is early"


async def test_checking_temporal_by_a_write_leaves_no_growing_data(temporal: Client) -> None:
    for _ in range(5):
        await write_probe.write_once(temporal)
    assert [each async for each in temporal.list_workflows(f"TaskQueue = '{write_probe.PROBE_QUEUE}'")] == []
