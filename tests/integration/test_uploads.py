"""Quotas of bytes, exact when uploads race; and floods of files: the process stays small and answers others."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import psutil
import pytest

from perdure.api.services import Services
from perdure.contracts.errors import CallerError
from perdure.contracts.turns import TurnStatus
from perdure.core.budgets import Quotas, UsedStorage
from perdure.core.turns import Caps
from perdure.local import DataParts
from perdure.store import agents, budgets
from perdure.store.database import new_id
from perdure.store.identity import erasure
from perdure.store.memory import files
from perdure.store.turns import conversations, start
from tests.conftest import Person, Urls
from tests.doubles.message_script import Line
from tests.eventually import until
from tests.harness import Harness
from tests.integration.conftest import Api, Caller, in_transaction
from tests.integration.test_api_process import ApiProcess, client_of, served_with
from tests.integration.test_api_turns import conversation as begun

KIB = 1024
MANY = 10**6

DOCUMENT = {"scope": "user", "path": "a.md", "type": "user_preference", "title": "A", "content": "word " * 1_000}
MIB = 2**20
ROW = b"12345,north,2024-01-01,some words of a row that is like any other\n"
TABLE = b"number,region,day,words\n" + ROW * ((20 * MIB - 24) // len(ROW))


@pytest.fixture
def limit(api: Api) -> Any:
    def put(**given: int) -> None:
        services: Services = api.app.state.services
        api.app.state.services = replace(services, caps=Caps(turns_a_user=MANY, quotas=Quotas(**given)))

    yield put
    put()


@pytest.fixture
async def ann(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with api.client_of(await api.new_user("ann" + new_id()[-8:], "requester"), timeout=60) as client:
        yield client


async def upload(
    client: httpx.AsyncClient, conversation: str, size: int = 10 * KIB, key: str | None = None, content: Any = None
) -> httpx.Response:
    head = {"Content-Type": "text/plain", **({"Idempotency-Key": key} if key else {}), "Content-Length": str(size)}
    path, named = f"/v1/conversations/{conversation}/files", {"name": "a.txt"}
    return await client.post(path, params=named, content=content or b"x" * size, headers=head)


async def kept(client: httpx.AsyncClient, conversation: str | None = None) -> dict[str, int]:
    answer = await client.get("/v1/usage", params={"conversation": conversation} if conversation else {})
    return {each["scope"]: each["used_bytes"] for each in answer.json()["items"]}


def summed(stored: int) -> tuple[int, ...]:
    """With the texts of none, one or two conversations without a title, whose metadata are `{}`."""
    return (stored, stored + 2, stored + 4)


def refused(answer: httpx.Response, scope: str) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    assert (answer.status_code, error["code"], error["details"].get("scope")) == (429, "quota_reached", scope)
    assert "retry-after" not in answer.headers, "waiting does not help"
    (unit,) = {"bytes", "files"} & {name.partition("_")[2] for name in error["details"]}
    used, added, limit = (error["details"][f"{name}_{unit}"] for name in ("used", "added", "limit"))
    assert added > 0 and used + added > limit, "what was refused is not in use"
    return error


async def test_stored_bytes_are_counted_exactly_and_released(ann: httpx.AsyncClient) -> None:
    talk, other = await begun(ann), await begun(ann)
    texts = (await kept(ann, talk))["conversation"]
    first = (await upload(ann, talk)).json()
    await upload(ann, other, 5)
    assert (await kept(ann, talk))["conversation"] == 10 * KIB + texts
    assert (await kept(ann))["user"] in summed(10 * KIB + 5)
    assert (await ann.delete(first["content"])).status_code == 204
    assert (await ann.get(first["content"])).status_code == 404
    assert (await ann.delete(first["content"])).status_code == 404
    assert (await kept(ann))["user"] in summed(5)
    assert (await ann.delete(f"/v1/conversations/{other}")).status_code == 204
    assert (await kept(ann))["user"] in summed(0)[1:], "its texts stay on record, its uploads do not"


async def test_a_turns_file_is_not_deleted_nor_with_its_conversation(ann: httpx.AsyncClient, harness: Harness) -> None:
    talk, (address, _) = await begun(ann), await harness.start(Line("hi"))
    made = (await upload(ann, talk)).json()
    await harness.write("UPDATE files SET turn_id = $2 WHERE id = $1", made["id"], address.turn_id)
    answer = await ann.delete(made["content"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "file_of_turn")
    assert (await ann.delete(f"/v1/conversations/{talk}")).status_code == 204
    assert await harness.value("SELECT count(*) FROM files WHERE id = $1", made["id"]) == 1


async def test_two_uploads_at_once_do_not_pass_a_quota(ann: httpx.AsyncClient, api: Api, limit: Any) -> None:
    talks = [await begun(ann) for _ in range(8)]
    limit(user_bytes=35 * KIB)
    answers = await asyncio.gather(*(upload(ann, talk) for talk in talks))
    assert sorted(answer.status_code for answer in answers) == [201] * 3 + [429] * 5
    error = next(refused(answer, "user") for answer in answers if answer.status_code == 429)
    assert error["details"]["limit_bytes"] == 35 * KIB
    assert 30 * KIB <= (await kept(ann))["user"] < 35 * KIB


async def test_talk_and_tenant_have_quotas(ann: httpx.AsyncClient, admin: Caller, limit: Any, harness: Harness) -> None:
    talk, other = await begun(ann), await begun(ann)
    limit(conversation_bytes=15 * KIB)
    assert (await upload(ann, talk)).status_code == 201
    refused(await upload(ann, talk), "conversation")
    assert (await upload(ann, other)).status_code == 201
    limit(tenant_bytes=(await in_transaction(harness.db, budgets.bytes_used, None))[0].tenant + KIB)
    refused(await upload(ann, other), "tenant")
    assert {"user", "tenant"} == set(await kept(admin))
    assert set(await kept(ann)) == {"user"}, "the tenant's is its administrators' to see"
    assert (await ann.get("/v1/usage", params={"conversation": new_id()})).status_code == 404


async def test_a_refused_upload_is_refused_before_it_is_sent(ann: httpx.AsyncClient, limit: Any) -> None:
    talk = await begun(ann)
    limit(user_bytes=10 * KIB)
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(64):
            sent += 1
            yield b"x" * KIB
            await asyncio.sleep(0.02)

    began = asyncio.get_running_loop().time()
    refused(await upload(ann, talk, 64 * KIB, content=body()), "user")
    assert asyncio.get_running_loop().time() - began < 10 and sent
    assert (await ann.get(f"/v1/conversations/{talk}/files")).json()["items"] == []


async def test_an_upload_that_is_sent_again_is_answered_as_before(ann: httpx.AsyncClient, limit: Any) -> None:
    talk, key = await begun(ann), new_id()
    first = await upload(ann, talk, KIB, key)
    limit(user_bytes=1)
    again = await upload(ann, talk, KIB, key)
    assert (first.status_code, again.status_code, again.json()) == (201, 201, first.json())
    refused(await upload(ann, talk, KIB, new_id()), "user")


async def test_a_conversation_has_a_maximum_of_files(ann: httpx.AsyncClient, limit: Any) -> None:
    talk = await begun(ann)
    limit(conversation_files=2)
    assert [(await upload(ann, talk, 1)).status_code for _ in range(2)] == [201, 201]
    assert refused(await upload(ann, talk, 1), "conversation")["details"]["limit_files"] == 2
    listed = (await ann.get(f"/v1/conversations/{talk}/files", params={"limit": 1})).json()
    rest = await ann.get(f"/v1/conversations/{talk}/files", params={"limit": 1, "cursor": listed["next"]})
    assert rest.json()["items"][0]["id"] != listed["items"][0]["id"] and rest.json()["next"] is None
    await ann.delete(rest.json()["items"][0]["content"])
    assert (await upload(ann, talk, 1)).status_code == 201


async def test_messages_and_metadata_count_and_a_full_quota_refuses_more(ann: httpx.AsyncClient, limit: Any) -> None:
    talk = await begun(ann, metadata={"a": "x" * KIB})
    assert KIB < (await kept(ann, talk))["conversation"] < KIB + 50
    await ann.patch(f"/v1/conversations/{talk}", json={"metadata": {}})
    assert (await kept(ann, talk))["conversation"] < 10
    said = {"message": "/echo " + "y" * 3 * KIB, "metadata": {"b": "z" * KIB}}
    turn = await ann.post(f"/v1/conversations/{talk}/turns", params={"wait": 30}, json=said)
    assert turn.json()["status"] == "completed", turn.text
    assert 7 * KIB < (await kept(ann, talk))["conversation"] < 7.2 * KIB, "message, metadata and answer"
    limit(conversation_bytes=8 * KIB)
    refused(await ann.post(f"/v1/conversations/{talk}/turns", json=said), "conversation")
    limit(conversation_bytes=5 * KIB)
    refused(await ann.patch(f"/v1/conversations/{talk}", json={"metadata": {"a": "x"}}), "conversation")
    limit()
    await ann.patch(f"/v1/conversations/{talk}", json={"metadata": {"a": "x"}})
    limit(conversation_bytes=5 * KIB)
    freed = await ann.patch(f"/v1/conversations/{talk}", json={"metadata": {}})
    assert freed.status_code == 200, "it frees bytes, though too many are left"
    limit(conversation_bytes=20 * KIB)
    assert (await ann.post(f"/v1/conversations/{talk}/turns", json=said)).status_code == 202


async def test_texts_count_for_the_user_once_they_are_summed(ann: httpx.AsyncClient, api: Api, limit: Any) -> None:
    limit(user_bytes=50 * KIB)
    metadata = {"a": "x" * 30 * KIB}
    await begun(ann, metadata=metadata)
    me = (await ann.get("/v1/auth/me")).json()["user_id"]

    async def summed_up() -> bool:  # as the first conversation had it done
        return (await kept(ann))["user"] > 30 * KIB

    await until(summed_up)
    async with api.services.db.transaction("local") as tx:
        await tx.execute("UPDATE byte_usage SET summed_at = now() - interval '2 minutes' WHERE subject_id = $1", me)
    refused(await ann.post("/v1/conversations", json={"agent": "refunds", "metadata": metadata}), "user")
    limit()
    await begun(ann, metadata=metadata)
    limit(user_bytes=50 * KIB)
    await in_transaction(api.services.db, budgets.sum_texts_of_user, me)
    refused(await ann.post("/v1/conversations", json={"agent": "refunds"}), "user")
    refused(await ann.post("/v1/execute", json={"agent": "refunds", "message": "hello"}), "user")


async def test_documents_count_with_all_their_versions(ann: httpx.AsyncClient, limit: Any) -> None:
    before = (await kept(ann))["user"]
    made = (await ann.post("/v1/memory/documents", json=DOCUMENT)).json()
    assert (await kept(ann))["user"] == before + 5_000, made
    changed = {"content": "other " * 1_000, "expected_sha256": made["sha256"]}
    path = f"/v1/memory/documents/{made['id']}"
    second = await ann.put(path, json=changed)
    assert second.status_code == 200 and (await kept(ann))["user"] == before + 11_000
    limit(user_bytes=before + 15_000)
    refused(await ann.put(path, json={**changed, "expected_sha256": second.json()["sha256"]}), "user")
    assert (await kept(ann))["user"] == before + 11_000
    refused(await ann.post("/v1/memory/documents", json={**DOCUMENT, "path": "b.md"}), "user")


async def test_safety_keywords_are_answered_even_if_the_quota_is_full(harness: Harness) -> None:
    conversation_id, person = await harness.conversation("care_navigator"), harness.people["requester"]
    full = Caps(turns_a_user=MANY, quotas=Quotas(user_bytes=1))

    async def say(message: str) -> start.StartedTurn:
        async with harness.db.transaction("local") as tx:
            new = start.NewTurn("local", conversation_id, person.user_id, message)
            return await start.start_turn(tx, new, await agents.current_agent(tx, "care_navigator"), full)

    with pytest.raises(CallerError) as full_up:
        await say("hello")
    assert full_up.value.code == "quota_reached"
    assert (await say("I want to die")).status is TurnStatus.COMPLETED


async def test_an_erasure_releases_all_storage_of_its_user(api: Api, harness: Harness, ann: httpx.AsyncClient) -> None:
    me = (await ann.get("/v1/auth/me")).json()
    async with harness.db.transaction("local") as tx:
        await budgets.sum_texts_of_tenant(tx)
        before = (await budgets.bytes_used(tx, None))[0].tenant
    talk, gone = await begun(ann, metadata={"a": "x" * KIB}), await begun(ann, metadata={"a": "x" * KIB})
    for each in (talk, gone):
        await upload(ann, each)
    await ann.delete(f"/v1/conversations/{gone}")
    assert (await ann.post("/v1/memory/documents", json=DOCUMENT)).status_code == 201
    assert (await kept(ann))["user"] > 15 * KIB
    await erasure.erase(harness.db, "local", me["name"], harness.people["admin"].user_id)
    used, _ = await in_transaction(harness.db, budgets.bytes_used, me["user_id"], talk)
    assert (used.conversation, used.user) == (0, 0)
    assert used.tenant <= before + KIB, "a sum of texts may have come in between"


async def test_the_counters_equal_what_is_stored(harness: Harness, people: dict[str, Person]) -> None:
    """However files came and went, in any number of transactions at once."""
    person = people["requester"]
    talks = [await harness.conversation() for _ in range(4)]
    gone: list[str] = []

    async def keeps(number: int) -> None:
        mine = [files.NewFile.of(new_id(), "a", "text/plain", b"x" * (number + n + 1)) for n in range(3)]
        await in_transaction(harness.db, files.store_files, talks[number % 4], person.user_id, mine)
        if number % 3 == 0:
            await in_transaction(harness.db, files.delete, mine[0].id, person.user_id)
        if number % 5 == 0:
            with pytest.raises(ZeroDivisionError):
                async with harness.db.transaction("local") as tx:
                    await files.store_files(tx, talks[0], person.user_id, [replace(mine[1], id=new_id())])
                    raise ZeroDivisionError
        if number == 30:
            await in_transaction(harness.db, conversations.delete_conversation, talks[3], person.user_id)

    async def one(number: int) -> None:
        try:
            await keeps(number)
        except CallerError as error:
            gone.append(talks[number % 4])
            assert error.status == 404, error.code

    await asyncio.gather(*(one(number) for number in range(40)))
    assert set(gone) <= {talks[3]}, "only the deleted conversation refuses"
    size, me = "SELECT coalesce(sum(size_bytes), 0) FROM files WHERE", person.user_id
    async with harness.db.transaction("local") as tx:
        for talk in talks:
            there = await tx.fetchval(f"{size} conversation_id = $1", talk)
            assert (await budgets.bytes_used(tx, me, talk))[0].conversation == there
        counted = "SELECT stored_bytes FROM byte_usage WHERE scope = 'user' AND subject_id = $1"
        assert await tx.fetchval(counted, me) == await tx.fetchval(f"{size} user_id = $1", me)
    async with harness.db.transaction("nobody") as tx:  # a tenant's counters are its own
        assert (await budgets.bytes_used(tx, people["requester"].user_id))[0] == UsedStorage()


@dataclass
class Seen:
    """What was measured while something else went on."""

    first_bytes: int
    most_bytes: int = 0
    seconds: list[float] = field(default_factory=list)

    @property
    def grown_mib(self) -> float:
        return (self.most_bytes - self.first_bytes) / MIB

    @property
    def p95(self) -> float:
        return sorted(self.seconds)[int(len(self.seconds) * 0.95)]


@asynccontextmanager
async def watched(api_process: ApiProcess, person: Person) -> AsyncIterator[Seen]:
    """Look at the process and its children twenty times a second, and ask it something as another person would."""
    assert api_process.process is not None
    process = psutil.Process(api_process.process.pid)
    seen = Seen(process.memory_info().rss)

    async def weigh() -> None:
        while True:
            total = process.memory_info().rss
            for child in process.children(recursive=True):
                with suppress(psutil.Error):
                    total += child.memory_info().rss
            seen.most_bytes = max(seen.most_bytes, total)
            await asyncio.sleep(0.02)

    async def ask() -> None:
        async with client_of(api_process, person) as client:
            while True:
                began = time.monotonic()
                (await client.get("/v1/auth/me")).raise_for_status()
                seen.seconds.append(time.monotonic() - began)
                await asyncio.sleep(0.05)

    tasks = [asyncio.create_task(weigh()), asyncio.create_task(ask())]
    await until(lambda: len(seen.seconds) > 3)
    try:
        yield seen
    finally:
        for task in tasks:
            task.cancel()
        failed = [each for each in await asyncio.gather(*tasks, return_exceptions=True) if isinstance(each, Exception)]
        assert not failed, failed


@pytest.fixture(scope="module")
async def api_process(
    parts: DataParts, urls: Urls, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ApiProcess]:
    home = str(tmp_path_factory.mktemp("home"))
    unlimited = {"PERDURE_BYTES_PER_USER": "0", "PERDURE_BYTES_PER_CONVERSATION": "0"}
    async with served_with(parts, urls, PERDURE_HOME=home, **unlimited) as running:
        yield running


async def new_conversation(client: httpx.AsyncClient) -> str:
    return f"/v1/conversations/{await begun(client, agent='chart_builder')}/files"


async def send(client: httpx.AsyncClient, path: str, content: bytes, kind: str = "text/csv") -> tuple[int, str]:
    head, named = {"Content-Type": kind}, {"name": "a.csv"}
    sent = await client.post(path, params=named, content=content, headers=head, timeout=180)
    return sent.status_code, sent.json().get("error", {}).get("code", "")


@pytest.mark.soak
@pytest.mark.timed
async def test_16_files_of_20_mib_at_once_spare_memory_and_others(
    api_process: ApiProcess, people: dict[str, Person]
) -> None:
    """Before uploads went to the disk, the process grew by 1,166 MiB and others waited for 2 s (p95)."""
    async with client_of(api_process, people["requester"]) as client:
        path, other = await new_conversation(client), await new_conversation(client)
        async with watched(api_process, people["admin"]) as seen:
            answers = await asyncio.gather(*(send(client, each, TABLE) for each in (path, other) for _ in range(8)))
        assert [status for status, _ in answers] == [201] * 16
        assert seen.grown_mib < 200, seen
        assert seen.p95 < 1.5, seen
        (newest,) = (await client.get(path, params={"limit": 1})).json()["items"]
        async with watched(api_process, people["admin"]) as seen:
            found = await asyncio.gather(*(client.get(newest["content"]) for _ in range(8)))
        assert all(each.content == TABLE for each in found)
        assert seen.grown_mib < 100, seen
        page, file = f"/chat/{path.split('/')[3]}/files", {"file": ("a.csv", TABLE, "text/csv")}
        async with watched(api_process, people["admin"]) as seen:
            forms = ({"key": new_id()} for _ in range(8))
            posts = (client.post(page, data=each, files=file, timeout=180) for each in forms)
            assert [each.status_code for each in await asyncio.gather(*posts)] == [303] * 8
        assert seen.grown_mib < 200, "forms of pages go by the disk as well"


async def test_a_user_has_a_maximum_of_simultaneous_uploads(api_process: ApiProcess, people: dict[str, Person]) -> None:
    async def slowly() -> AsyncIterator[bytes]:
        yield b"a,b\n"
        await asyncio.sleep(1.5)
        yield b"1,2\n"

    async with client_of(api_process, people["requester"]) as client:
        path = await new_conversation(client)

        async def upload() -> httpx.Response:
            head = {"Content-Type": "text/csv"}
            return await client.post(path, params={"name": "a.csv"}, content=slowly(), headers=head)

        answers = await asyncio.gather(*(upload() for _ in range(17)))
        assert sorted(answer.status_code for answer in answers) == [201] * 16 + [429]
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.json()["error"]["code"] == "too_many_uploads"
        assert refused.headers["retry-after"] == "15"
        assert (await upload()).status_code == 201, "the others are over, and count no more"


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "a million columns": (
        lambda: b",".join(b"c%d" % n for n in range(1_000_000)) + b"\n" + b",".join([b"1"] * 1_000_000),
        "table_too_large",
    ),
    "a row of ten million cells": (lambda: b"a,b\n" + b"," * 10_000_000, "table_broken"),
    "a row of a million texts": (lambda: b"a,b\n" + b"abcdefgh," * (2 * MIB), "table_too_costly"),
    "a quote that never ends": (lambda: b'a,b\n1,"' + b"x" * (20 * MIB - 10), "table_broken"),
    "wide characters": (lambda: b"a,b\n" + "1,\U0001f600\n".encode() * (2 * MIB), "table_too_large"),
    "a wide line that never ends": (lambda: "\U0001f600".encode() * (5 * MIB), "table_broken"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "a million columns" else pytest.mark.soak) for name in HOSTILE]
)
async def test_hostile_tables_are_refused_and_delay_none(
    api_process: ApiProcess, people: dict[str, Person], name: str
) -> None:
    """Before, eight of them took 900 MiB in the API itself, and a request of others waited for 0.6 s."""
    make, code = HOSTILE[name]
    content = make()
    async with client_of(api_process, people["requester"]) as client:
        path = await new_conversation(client)
        async with watched(api_process, people["admin"]) as seen:
            answers = await asyncio.gather(*(send(client, path, content) for _ in range(8)))
        assert answers == [(422, code)] * 8
        assert seen.grown_mib < 360, seen  # two processes of 128 MiB at most, beside what the API buffers
        assert (await client.get(path)).json()["items"] == []


async def test_a_killed_check_refuses_its_file_and_is_no_outage(
    api_process: ApiProcess, people: dict[str, Person]
) -> None:
    assert api_process.process is not None
    process, killed = psutil.Process(api_process.process.pid), 0

    async def kill() -> None:
        nonlocal killed
        while True:
            for child in process.children():
                with suppress(psutil.Error):
                    child.kill()
                    killed += 1
            await asyncio.sleep(0.005)

    async with client_of(api_process, people["requester"]) as client:
        path = await new_conversation(client)
        killing = asyncio.create_task(kill())
        try:
            assert await send(client, path, TABLE) == (422, "table_too_costly")
        finally:
            killing.cancel()
        assert killed
        assert await send(client, path, TABLE) == (201, "")
