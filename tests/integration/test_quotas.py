"""Quotas of bytes: exact when uploads race, given back by deletion and erasure, right for what was there before."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from perdure.api.services import Services
from perdure.contracts.errors import CallerError
from perdure.contracts.turns import TurnStatus
from perdure.core.budgets import Quotas, UsedStorage
from perdure.core.turns import Caps
from perdure.store import agents, budgets
from perdure.store.database import new_id
from perdure.store.identity import erasure
from perdure.store.memory import files
from perdure.store.turns import conversations, start
from tests.conftest import Person
from tests.doubles.message_script import Line
from tests.eventually import until
from tests.harness import Harness
from tests.integration.conftest import Api, Caller, in_transaction

KIB = 1024
MANY = 10**6


DOCUMENT = {"scope": "user", "path": "a.md", "type": "user_preference", "title": "A", "content": "word " * 1_000}


@pytest.fixture
def limit(api: Api) -> Any:
    def put(**given: int) -> None:
        services: Services = api.app.state.services
        api.app.state.services = replace(services, caps=Caps(turns_a_user=MANY, quotas=Quotas(**given)))

    yield put
    put()


@pytest.fixture
async def ann(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    name = "ann" + new_id()[-8:]
    async with api.client("admin") as admin:
        await admin.post("/v1/users", json={"name": name, "roles": ["requester"]})
        token = (await admin.post(f"/v1/users/{name}/tokens", json={})).json()["token"]
    async with httpx.AsyncClient(base_url=api.url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
        yield client


async def begun(client: httpx.AsyncClient, **given: Any) -> str:
    made = await client.post("/v1/conversations", json={"agent": "refunds", **given})
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


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
    await begun(ann, metadata=metadata)
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
