"""/v1/memory/documents and /v1/memory/promotions over HTTP: versions, conflicts, whose they are, and who decides."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from perdure.client.memory import Promotion
from perdure.contracts.values import sha256_hex
from perdure.store.database import new_id
from tests.integration.conftest import Api
from tests.integration.test_api_turns import conversation, pages, refusal

DOCUMENTS, PROMOTIONS = "/v1/memory/documents", "/v1/memory/promotions"


@dataclass(frozen=True, slots=True)
class Clients:
    """A client for each local user."""

    requester: httpx.AsyncClient
    reviewer: httpx.AsyncClient
    admin: httpx.AsyncClient
    nobody: httpx.AsyncClient


@pytest.fixture
async def clients(api: Api) -> AsyncIterator[Clients]:
    async with AsyncExitStack() as stack:
        names = ("requester", "reviewer", "admin", None)
        yield Clients(*[await stack.enter_async_context(api.client(name)) for name in names])


def body(path: str, content: str, **more: Any) -> dict[str, Any]:
    return {"scope": "user", "path": path, "type": "user_preference", "title": path, "content": content, **more}


async def made(client: httpx.AsyncClient, path: str, content: str, **more: Any) -> dict[str, Any]:
    answer = await client.post(DOCUMENTS, json=body(path, content, **more))
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def test_a_document_is_written_once_a_key_read_changed_and_its_versions_listed(clients: Clients) -> None:
    me, key = clients.requester, {"Idempotency-Key": new_id()}
    first, again = [await me.post(DOCUMENTS, json=body("prefs/tone", "Short."), headers=key) for _ in range(2)]
    assert first.status_code == again.status_code == 201 and first.json() == again.json()
    made = first.json()
    assert (made["sha256"], made["number"], made["trust"]) == (sha256_hex("Short."), 1, "user_authored")
    assert refusal(await me.post(DOCUMENTS, json=body("prefs/tone", "Other."))) == (409, "document_exists")
    place = f"{DOCUMENTS}/{made['id']}"
    read = (await me.get(place)).json()
    assert (read["content"], read["path"], read["store"]) == ("Short.", "prefs/tone", "user_memory")
    edits = {"expected_sha256": made["sha256"], "edits": [{"find": "Short", "replace": "Shorter"}]}
    patched = await me.patch(place, json=edits)
    assert patched.status_code == 200 and patched.json()["sha256"] == sha256_hex("Shorter.")
    for answer in (
        await me.patch(place, json=edits),
        await me.put(place, json={"expected_sha256": made["sha256"], "content": "x"}),
    ):
        assert refusal(answer) == (409, "memory_conflict")
        assert answer.json()["error"]["details"] == {"sha256": sha256_hex("Shorter.")}
    whole = await me.put(place, json={"expected_sha256": sha256_hex("Shorter."), "content": "New", "title": "T"})
    assert whole.json()["number"] == 3
    versions = (await me.get(f"{place}/versions")).json()["items"]
    assert [each["number"] for each in versions] == [3, 2, 1]
    assert (await me.get(f"{place}/versions/{made['version_id']}")).json()["content"] == "Short."
    assert (await me.get(f"{place}/versions/{new_id()}")).status_code == 404
    listed = (await me.get(DOCUMENTS, params={"prefix": "prefs/"})).json()["items"]
    assert [(each["id"], each["title"]) for each in listed] == [(made["id"], "T")] and "content" not in listed[0]


async def test_what_is_a_persons_own_is_404_for_everybody_else(clients: Clients) -> None:
    here = await conversation(clients.requester)
    own = [
        await made(clients.requester, "mine/a", "the axolotl sleeps"),
        await made(clients.requester, "mine/b", "the axolotl wakes", scope="conversation", conversation_id=here),
    ]
    search = {"query": "axolotl", "conversation_id": here}
    found = (await clients.requester.post(f"{DOCUMENTS}/search", json=search)).json()["items"]
    assert {each["path"] for each in found} == {"mine/a", "mine/b"} and all(0 < each["score"] <= 1 for each in found)
    for other in (clients.reviewer, clients.admin):
        assert (await other.post(f"{DOCUMENTS}/search", json=search)).json()["items"] == []
        for params in ({"prefix": "mine/"}, {"conversation_id": here}):
            assert "mine/" not in (await other.get(DOCUMENTS, params=params)).text
        for document in own:
            place = f"{DOCUMENTS}/{document['id']}"
            change = {"expected_sha256": document["sha256"], "content": "x"}
            propose = {"document_id": document["id"], "store": "workspace_runbooks", "path": "x", "risk": "low"}
            answers = [
                await other.get(place),
                await other.get(f"{place}/versions"),
                await other.get(f"{place}/versions/{document['version_id']}"),
                await other.put(place, json=change),
                await other.post(PROMOTIONS, json=propose),
            ]
            assert {refusal(each) for each in answers} == {(404, "document_not_found")}
        theirs = await other.post(DOCUMENTS, json=body("x", "x", scope="conversation", conversation_id=here))
        assert refusal(theirs) == (404, "conversation_not_found")
    for answer in (await clients.nobody.get(DOCUMENTS), await clients.nobody.get(PROMOTIONS)):
        assert answer.status_code == 401


async def test_only_an_administrator_writes_deletes_and_redacts_what_is_shared(clients: Clients) -> None:
    shared = body("deploys/ferret.md", "ferret first", scope="workspace", store="workspace_runbooks", type="runbook")
    assert refusal(await clients.requester.post(DOCUMENTS, json=shared)) == (403, "workspace_read_only")
    document = (await clients.admin.post(DOCUMENTS, json=shared)).json()
    assert document["trust"] == "admin_approved"
    place = f"{DOCUMENTS}/{document['id']}"
    assert (await clients.requester.get(place)).json()["content"] == "ferret first"
    redact = f"{place}/versions/{document['version_id']}/redact"
    change = {"expected_sha256": document["sha256"], "content": "x"}
    for answer in (
        await clients.requester.put(place, json=change),
        await clients.requester.delete(place),
        await clients.requester.post(redact, json={"reason": "x"}),
        await clients.requester.put("/v1/memory/stores/user_memory", json={"archived": True}),
    ):
        assert answer.status_code == 403
    assert (await clients.admin.post(redact, json={"reason": " "})).status_code == 422
    done = await clients.admin.post(redact, json={"reason": "a name in it"})
    assert done.status_code == 200 and "ferret" not in done.text
    assert (await clients.requester.get(place)).json()["content"] is None
    assert (await clients.requester.post(f"{DOCUMENTS}/search", json={"query": "ferret"})).json()["items"] == []
    assert (await clients.admin.delete(place)).status_code == 204
    assert [(await clients.admin.delete(place)).status_code, (await clients.requester.get(place)).status_code] == [
        404,
        404,
    ]


async def test_an_administrator_redacts_what_is_anothers_own_without_reading_it(clients: Clients) -> None:
    own = await made(clients.requester, "mine/redacted", "a word that should not be here")
    place = f"{DOCUMENTS}/{own['id']}"
    assert (await clients.admin.get(place)).status_code == 404
    done = await clients.admin.post(f"{place}/versions/{own['version_id']}/redact", json={"reason": "asked to"})
    assert done.status_code == 200 and "should not" not in done.text
    versions = (await clients.requester.get(f"{place}/versions")).json()["items"]
    assert versions[0]["redaction_reason"] == "asked to" and versions[0]["redacted_at"]


async def test_a_promotion_is_proposed_seen_and_decided_once_by_another(clients: Clients) -> None:
    own = await made(clients.requester, "mine/heron", "heron builds take ten minutes")
    proposal = {"document_id": own["id"], "store": "workspace_conventions", "path": "heron.md", "risk": "medium"}
    answer = await clients.requester.post(PROMOTIONS, json=proposal)
    assert answer.status_code == 201 and answer.json()["status"] == "pending"
    place = f"{PROMOTIONS}/{answer.json()['id']}"
    assert (await clients.reviewer.get(place)).status_code == 404
    seen = (await clients.admin.get(place)).json()
    assert seen["content"] == "heron builds take ten minutes" and seen["proposed_by"] == "requester"
    pending = (await clients.admin.get(PROMOTIONS, params={"status": "pending"})).json()["items"]
    assert seen["id"] in [each["id"] for each in pending] and all("content" not in each for each in pending)
    assert (await clients.reviewer.get(PROMOTIONS)).json()["items"] == []
    decision = {"decision": "approve", "sha256": seen["sha256"]}
    assert refusal(await clients.requester.post(f"{place}/decision", json=decision)) == (403, "role_required")
    stale = await clients.admin.post(f"{place}/decision", json={**decision, "sha256": "0"})
    assert refusal(stale) == (409, "memory_conflict")
    done = await clients.admin.post(f"{place}/decision", json=decision)
    assert done.status_code == 200 and (done.json()["status"], done.json()["decided_by"]) == ("approved", "admin")
    assert [Promotion.model_validate(each).content for each in (*pending, done.json())] == [None] * (len(pending) + 1)
    assert Promotion.model_validate(seen).content == seen["content"], "the client reads what the API says"
    twice = await clients.admin.post(f"{place}/decision", json={"decision": "reject", "sha256": "x", "comment": "no"})
    assert refusal(twice) == (409, "promotion_decided")
    (hit,) = (await clients.reviewer.post(f"{DOCUMENTS}/search", json={"query": "heron"})).json()["items"]
    assert (hit["path"], hit["trust"], hit["version_id"]) == ("heron.md", "admin_approved", done.json()["made_version"])


async def test_a_store_is_closed_and_opened_again(clients: Clients) -> None:
    place = "/v1/memory/stores/workspace_runbooks"
    assert (await clients.admin.put(place, json={"archived": True})).json()["archived_at"]
    try:
        shared = body("late.md", "x", scope="workspace", store="workspace_runbooks", type="runbook")
        assert refusal(await clients.admin.post(DOCUMENTS, json=shared)) == (409, "store_archived")
    finally:
        assert (await clients.admin.put(place, json={"archived": False})).json()["archived_at"] is None
    assert (await clients.admin.put("/v1/memory/stores/nowhere", json={"archived": True})).status_code == 404
    slugs = [store["slug"] for store in (await clients.requester.get("/v1/memory/stores")).json()["items"]]
    assert sorted(slugs) == ["conversation_memory", "user_memory", "workspace_conventions", "workspace_runbooks"]


@pytest.mark.parametrize(
    ("change", "status", "expected"),
    [
        ({"scope": "everybody"}, 422, "invalid_input"),
        ({"type": "poem"}, 422, "invalid_input"),
        ({"content": " "}, 422, "invalid_input"),
        ({"content": "x" * 100_001}, 422, "invalid_input"),
        ({"user_id": "someone"}, 422, "invalid_input"),
        ({"entities": ["x"] * 33}, 422, "invalid_input"),
        ({"path": "../etc"}, 422, "path_invalid"),
        ({"content": "é" * 60_000}, 422, "memory_unsafe"),
        ({"content": "-----BEGIN " + "PRIVATE KEY-----"}, 422, "memory_unsafe"),
        ({"scope": "workspace"}, 404, "store_not_found"),
        ({"store": "workspace_runbooks"}, 404, "store_not_found"),
        ({"scope": "conversation"}, 404, "conversation_not_found"),
        ({"scope": "conversation", "conversation_id": "nonsense"}, 404, "conversation_not_found"),
    ],
)
async def test_bad_input_is_refused(clients: Clients, change: dict[str, Any], status: int, expected: str) -> None:
    answer = await clients.requester.post(DOCUMENTS, json={**body("bad/input", "x"), **change})
    assert refusal(answer) == (status, expected)


async def test_what_is_no_id_is_404_on_every_route(clients: Clients) -> None:
    name = "nonsense"
    place, change = f"{DOCUMENTS}/{name}", {"expected_sha256": "x", "content": "x"}
    decision = {"decision": "approve", "sha256": "x"}
    answers = [
        await clients.admin.get(place),
        await clients.admin.put(place, json=change),
        await clients.admin.patch(place, json={"expected_sha256": "x", "edits": [{"find": "a", "replace": "b"}]}),
        await clients.admin.delete(place),
        await clients.admin.get(f"{place}/versions"),
        await clients.admin.post(f"{place}/versions/{name}/redact", json={"reason": "x"}),
        await clients.admin.get(f"{PROMOTIONS}/{name}"),
        await clients.admin.post(f"{PROMOTIONS}/{name}/decision", json=decision),
    ]
    assert {answer.status_code for answer in answers} == {404}


async def test_pages_go_on_where_the_last_one_ended(clients: Clients) -> None:
    for number in range(5):
        await made(clients.reviewer, f"pages/{number}", f"page {number}")
    seen = [each["path"] for each in await pages(clients.reviewer, DOCUMENTS, 2, prefix="pages/")]
    assert seen == [f"pages/{number}" for number in (4, 3, 2, 1, 0)]
