"""/v1/memory and /v1/entities over HTTP: versions and conflicts of documents, promotions, working memory, summaries."""

from typing import Any

import httpx

from perdure.api.routes.memory_bodies import MAX_EPISODES
from perdure.contracts.values import sha256_hex
from perdure.schemas.memory import Promotion
from perdure.store.database import new_id
from perdure.store.memory import facts, working_memory
from tests.integration.conftest import Api, Caller
from tests.integration.test_api_turns import conversation, pages, refusal

DOCUMENTS, PROMOTIONS = "/v1/memory/documents", "/v1/memory/promotions"


def body(path: str, content: str, **more: Any) -> dict[str, Any]:
    return {"scope": "user", "path": path, "type": "user_preference", "title": path, "content": content, **more}


async def create_document(client: httpx.AsyncClient, path: str, content: str, **more: Any) -> dict[str, Any]:
    answer = await client.post(DOCUMENTS, json=body(path, content, **more))
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def test_a_document_is_written_once_per_key_read_changed_and_its_versions_listed(requester: Caller) -> None:
    me, key = requester, {"Idempotency-Key": new_id()}
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
    assert [each["number"] for each in (await me.get(f"{place}/versions")).json()["items"]] == [3, 2, 1]
    assert (await me.get(f"{place}/versions/{made['version_id']}")).json()["content"] == "Short."
    assert (await me.get(f"{place}/versions/{new_id()}")).status_code == 404
    listed = (await me.get(DOCUMENTS, params={"prefix": "prefs/"})).json()["items"]
    assert [(each["id"], each["title"]) for each in listed] == [(made["id"], "T")] and "content" not in listed[0]


async def test_an_admin_redacts_another_users_document_without_reading_it(requester: Caller, admin: Caller) -> None:
    own = await create_document(requester, "mine/redacted", "a word that should not be here")
    place = f"{DOCUMENTS}/{own['id']}"
    assert (await admin.get(place)).status_code == 404
    redact = f"{place}/versions/{own['version_id']}/redact"
    assert (await admin.post(redact, json={"reason": " "})).status_code == 422
    done = await admin.post(redact, json={"reason": "asked to"})
    assert done.status_code == 200 and "should not" not in done.text
    versions = (await requester.get(f"{place}/versions")).json()["items"]
    assert versions[0]["redaction_reason"] == "asked to" and versions[0]["redacted_at"]


async def test_a_promotion_is_proposed_read_and_decided_by_another_user(
    requester: Caller, reviewer: Caller, admin: Caller
) -> None:
    own = await create_document(requester, "mine/heron", "heron builds take ten minutes")
    proposal = {"document_id": own["id"], "store": "workspace_conventions", "path": "heron.md", "risk": "medium"}
    answer = await requester.post(PROMOTIONS, json=proposal)
    assert answer.status_code == 201 and answer.json()["status"] == "pending"
    place = f"{PROMOTIONS}/{answer.json()['id']}"
    assert (await reviewer.get(place)).status_code == 404
    seen = (await admin.get(place)).json()
    assert seen["content"] == "heron builds take ten minutes" and seen["proposed_by"] == "requester"
    pending = (await admin.get(PROMOTIONS, params={"status": "pending"})).json()["items"]
    assert seen["id"] in [each["id"] for each in pending] and all("content" not in each for each in pending)
    assert (await reviewer.get(PROMOTIONS)).json()["items"] == []
    decision = {"decision": "approve", "sha256": seen["sha256"]}
    done = await admin.post(f"{place}/decision", json=decision)
    assert done.status_code == 200 and (done.json()["status"], done.json()["decided_by"]) == ("approved", "admin")
    assert [Promotion.model_validate(each).content for each in (*pending, done.json())] == [None] * (len(pending) + 1)
    assert Promotion.model_validate(seen).content == seen["content"], "the client reads what the API says"
    (hit,) = (await reviewer.post(f"{DOCUMENTS}/search", json={"query": "heron"})).json()["items"]
    assert (hit["path"], hit["trust"], hit["version_id"]) == ("heron.md", "admin_approved", done.json()["made_version"])


async def test_a_store_is_archived_and_opened_again(requester: Caller, admin: Caller) -> None:
    place = "/v1/memory/stores/workspace_runbooks"
    for archived in (True, False):
        store = (await admin.put(place, json={"archived": archived})).json()
        assert (store["archived_at"] is not None) is archived
    assert (await admin.put("/v1/memory/stores/nowhere", json={"archived": True})).status_code == 404
    slugs = [store["slug"] for store in (await requester.get("/v1/memory/stores")).json()["items"]]
    assert sorted(slugs) == ["conversation_memory", "user_memory", "workspace_conventions", "workspace_runbooks"]


async def test_a_document_needs_a_store_of_its_scope(requester: Caller) -> None:
    for change in ({"scope": "workspace"}, {"store": "workspace_runbooks"}):
        refused = await requester.post(DOCUMENTS, json={**body("bad/input", "x"), **change})
        assert refusal(refused) == (404, "store_not_found"), change


async def test_each_page_continues_where_the_last_one_ended(reviewer: Caller) -> None:
    for number in range(5):
        await create_document(reviewer, f"pages/{number}", f"page {number}")
    seen = [each["path"] for each in await pages(reviewer, DOCUMENTS, 2, prefix="pages/")]
    assert seen == [f"pages/{number}" for number in (4, 3, 2, 1, 0)]


def working(conversation_id: str) -> str:
    return f"/v1/memory/working/{conversation_id}"


async def test_fields_are_set_merged_and_removed_but_not_by_an_invalid_write(api: Api) -> None:
    async with api.client() as client:
        path = working(await conversation(client))
        assert (await client.get(path)).json()["fields"] == {}
        put = await client.put(path, json={"fields": {"a": 1, "b": {"c": []}}})
        assert put.status_code == 200 and put.json()["fields"] == {"a": 1, "b": {"c": []}}
        merged = await client.put(path, json={"fields": {"a": None, "d": "x", "e": 2}, "ttl_seconds": 60})
        assert merged.json()["fields"] == {"b": {"c": []}, "d": "x", "e": 2} and merged.json()["bytes"] == 16
        assert (await client.delete(path, params={"field": ["d", "e"]})).status_code == 204
        full = await client.put(path, json={"fields": {"big": "x" * 65_536}})
        assert refusal(full) == (413, "working_memory_full")
        details = full.json()["error"]["details"]
        assert details["most_bytes"] == working_memory.MAX_BYTES < details["bytes"]
        assert (await client.get(path)).json()["fields"] == {"b": {"c": []}}
        assert (await client.delete(path)).status_code == 204
        assert (await client.get(path)).json()["fields"] == {}


async def test_a_summary_is_stored_once_per_key_found_and_listed(requester: Caller, admin: Caller) -> None:
    conversation_id = await conversation(requester)
    body = {"conversation_id": conversation_id, "summary": "The flamingo order came late"}
    key = {"Idempotency-Key": new_id()}
    first, again = [await requester.post("/v1/memory/episodic", json=body, headers=key) for _ in range(2)]
    assert first.status_code == again.status_code == 201 and first.json() == again.json()
    search = {"agent": "refunds", "query": "where are my flamingos?"}
    (hit,) = (await requester.post("/v1/memory/episodic/search", json=search)).json()["items"]
    assert (hit["id"], hit["summary"]) == (first.json()["id"], body["summary"])
    assert hit["by"] in ("cosine", "full_text") and 0 < hit["similarity"] <= 1
    (entry,) = (await requester.get("/v1/memory/episodic", params={"conversation_id": conversation_id})).json()["items"]
    assert entry["summary"] == body["summary"] and "similarity" not in entry
    assert (await admin.post("/v1/memory/episodic/search", json=search)).json()["items"] == []


async def test_a_search_covers_its_agents_and_clamps_its_limit(requester: Caller) -> None:
    conversation_id = await conversation(requester)
    for number in range(MAX_EPISODES + 2):
        body = {"conversation_id": conversation_id, "summary": f"pelican number {number}"}
        assert (await requester.post("/v1/memory/episodic", json=body)).status_code == 201
    search = {"agent": "refunds", "query": "pelican", "limit": 10_000}
    assert len((await requester.post("/v1/memory/episodic/search", json=search)).json()["items"]) == MAX_EPISODES
    for limit in (0, True, None):
        wrong = await requester.post("/v1/memory/episodic/search", json={**search, "limit": limit})
        assert [each["field"] for each in wrong.json()["error"]["details"]["fields"]] == ["body.limit"]
    unknown = await requester.post("/v1/memory/episodic/search", json={"agent": "nobody", "query": "x"})
    assert refusal(unknown) == (404, "agent_not_found")
    listed = await pages(requester, "/v1/memory/episodic", 20, conversation_id=conversation_id)
    assert len({each["id"] for each in listed}) == len(listed) == MAX_EPISODES + 2


async def registered(api: Api, name: str, **attributes: object) -> str:
    async with api.services.db.transaction("local") as tx:
        return (await facts.create_entity(tx, "well", name, {**attributes}, None, None)).id  # type: ignore[dict-item]


async def test_an_entity_is_found_by_its_name_an_alias_or_a_part_of_it_and_read_by_its_id(api: Api) -> None:
    mark = new_id()
    one = await registered(api, f"Alder {mark} 1", aliases=[f"Old {mark}"], county="Reeves")
    two = await registered(api, f"Alder {mark} 2")
    whole = {"id": one, "kind": "well", "name": f"Alder {mark} 1"}
    async with api.client() as client:
        for name, ids in ((f"ALDER  {mark} 1", {one}), (f"old {mark}", {one}), (mark, {one, two}), (new_id(), set())):
            found = (await client.get("/v1/entities", params={"name": name})).json()
            assert {each["id"] for each in found["items"]} == ids and found["next"] is None, name
        assert len((await client.get("/v1/entities", params={"name": mark, "limit": 1})).json()["items"]) == 1
        read = (await client.get(f"/v1/entities/{one}")).json()
    assert read == {**whole, "attributes": {"aliases": [f"Old {mark}"], "county": "Reeves"}}
