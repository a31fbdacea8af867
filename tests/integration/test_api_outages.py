"""The API's answers while one of its parts is unavailable, and its checks of the parts."""

import asyncio
import shutil
import time
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

from perdure.api.health import WRITE_VALID_SECONDS, Parts
from perdure.local import DataParts
from perdure.store.status import write_fault
from perdure.temporal import status as write_probe
from tests.conftest import Person, Urls, as_owner
from tests.doubles.tcp_link import TcpLink
from tests.eventually import until
from tests.integration.conftest import Api, Caller, serving
from tests.integration.test_api_turns import conversation, refusal


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
    assert refusal(answer) == (503, "unavailable"), answer.text
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
        assert (await client.get("/readyz")).status_code == 200


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
        async with linked_api.api.services.db.transaction("local") as tx:
            left = await tx.fetch("SELECT kind FROM outbox WHERE turn_id = $1", accepted.json()["turn_id"])
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


async def test_a_read_only_postgres_is_reported_as_a_fault(api: Api, visitor: Caller, urls: Urls) -> None:
    """Makes every new transaction read-only, as a provider does whose disk is full."""
    name = urls.app.rpartition("/")[2]
    admin = await asyncpg.connect(urls.admin)
    parts = parts_of(api)

    async def unready() -> bool:  # its own look may have written a moment ago
        ready = await visitor.get("/readyz")
        return (ready.status_code, ready.json()) == (503, {"ready": False})

    try:
        await admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        await api.services.db.pool.expire_connections()
        assert (await faults(parts))["postgres"]
        await until(unready)
    finally:
        await admin.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
        await api.services.db.pool.expire_connections()
        await admin.close()
    assert (await faults(parts))["postgres"] == ""


async def test_the_disk_of_the_local_data_folder_is_checked(api: Api, tmp_path: Path) -> None:
    assert (await faults(parts_of(api, tmp_path)))["disk"] == ""
    more_than_there_is = shutil.disk_usage(tmp_path).total + 1
    assert (await faults(parts_of(api, tmp_path, more_than_there_is)))["disk"]
    assert "disk" not in await faults(parts_of(api, None, more_than_there_is))


@dataclass
class Refusing:
    """A Temporal that is reached by a client without the right to write settings, as a hosted one may be."""

    status: RPCStatusCode

    async def update_task_queue_config(self, _request: object) -> None:
        raise RPCError("Request unauthorized.", self.status, b"")


@pytest.mark.parametrize("status", [RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED])
async def test_a_forbidden_write_is_reported(api: Api, monkeypatch: pytest.MonkeyPatch, status: RPCStatusCode) -> None:
    monkeypatch.setattr(type(api.services.notifier.client), "workflow_service", Refusing(status))
    parts = parts_of(api)
    for _ in range(2):
        look = (await parts.check())["temporal"]
        assert look.fault == "" and look.note


def test_each_kind_of_outage_has_its_own_code() -> None:
    kinds = asyncpg.DiskFullError, asyncpg.CannotConnectNowError, asyncpg.TooManyConnectionsError
    of_postgres = [write_fault(kind("x")) for kind in (*kinds, asyncpg.UndefinedTableError, TimeoutError)]
    assert all(of_postgres) and len(set(of_postgres)) == 5 and "UndefinedTableError" in of_postgres[3]
    assert write_fault(ConnectionRefusedError()) == of_postgres[4]
    full = RPCError("UpdateTaskQueueUserData failed: database or disk is full", RPCStatusCode.UNAVAILABLE, b"")
    busy = RPCError("too many", RPCStatusCode.RESOURCE_EXHAUSTED, b"")
    of_temporal = [write_probe.write_fault(error) for error in (full, busy, TimeoutError())]
    assert all(of_temporal) and len(set(of_temporal)) == 3


async def test_checking_temporal_by_a_write_leaves_no_growing_data(temporal: Client) -> None:
    for _ in range(5):
        await write_probe.write_once(temporal)
    assert [each async for each in temporal.list_workflows(f"TaskQueue = '{write_probe.PROBE_QUEUE}'")] == []
