"""/v1/memory over HTTP: one's own conversations only, typed refusals, and what is kept can be found."""

import httpx

from perdure.api.routes.memory import MOST_HITS
from perdure.store.database import new_id
from perdure.store.memory import working_memory
from tests.integration.conftest import Api
from tests.integration.test_api_turns import conversation, pages, refusal


def working(conversation_id: str) -> str:
    return f"/v1/memory/working/{conversation_id}"


async def test_fields_are_put_merged_read_and_removed_and_refused_whole_where_they_do_not_fit(api: Api) -> None:
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
        assert details["most_bytes"] == working_memory.MOST_BYTES < details["bytes"]
        assert (await client.get(path)).json()["fields"] == {"b": {"c": []}}
        assert (await client.delete(path)).status_code == 204
        assert (await client.get(path)).json()["fields"] == {}


async def test_memory_is_its_users_own_even_where_a_role_reads_the_turns(api: Api) -> None:
    async with api.client() as owner:
        conversation_id = await conversation(owner)
        await owner.put(working(conversation_id), json={"fields": {"mine": 1}})
        episode = {"conversation_id": conversation_id, "summary": "mine alone"}
        assert (await owner.post("/v1/memory/episodic", json=episode)).status_code == 201
    for name in ("reviewer", "admin"):
        async with api.client(name) as client:
            for unseen in (conversation_id, "nonsense", new_id()):
                answers: list[httpx.Response] = [
                    await client.get(working(unseen)),
                    await client.put(working(unseen), json={"fields": {}}),
                    await client.delete(working(unseen)),
                    await client.post("/v1/memory/episodic", json={**episode, "conversation_id": unseen}),
                    await client.get("/v1/memory/episodic", params={"conversation_id": unseen}),
                ]
                assert {refusal(each) for each in answers} == {(404, "conversation_not_found")}
            found = await client.post("/v1/memory/episodic/search", json={"agent": "refunds", "query": "mine alone"})
            assert found.json()["items"] == []


async def test_a_summary_is_kept_once_a_key_and_found_and_listed(api: Api) -> None:
    async with api.client() as client:
        conversation_id = await conversation(client)
        body = {"conversation_id": conversation_id, "summary": "The flamingo order came late"}
        key = {"Idempotency-Key": new_id()}
        first, again = [await client.post("/v1/memory/episodic", json=body, headers=key) for _ in range(2)]
        assert first.status_code == again.status_code == 201 and first.json() == again.json()
        search = {"agent": "refunds", "query": "where are my flamingos?"}
        (hit,) = (await client.post("/v1/memory/episodic/search", json=search)).json()["items"]
        assert (hit["id"], hit["summary"]) == (first.json()["id"], body["summary"])
        assert hit["by"] in ("cosine", "full_text") and 0 < hit["similarity"] <= 1
        listed = await client.get("/v1/memory/episodic", params={"conversation_id": conversation_id})
        (entry,) = listed.json()["items"]
        assert entry["summary"] == body["summary"] and "similarity" not in entry


async def test_search_knows_its_agents_and_clamps_its_limit(api: Api) -> None:
    async with api.client() as client:
        conversation_id = await conversation(client)
        for number in range(MOST_HITS + 2):
            body = {"conversation_id": conversation_id, "summary": f"pelican number {number}"}
            assert (await client.post("/v1/memory/episodic", json=body)).status_code == 201
        search = {"agent": "refunds", "query": "pelican", "limit": 10_000}
        answer = await client.post("/v1/memory/episodic/search", json=search)
        assert len(answer.json()["items"]) == MOST_HITS
        for limit in (0, True, None):
            wrong = await client.post("/v1/memory/episodic/search", json={**search, "limit": limit})
            assert [each["field"] for each in wrong.json()["error"]["details"]["fields"]] == ["body.limit"]
        unknown = await client.post("/v1/memory/episodic/search", json={"agent": "nobody", "query": "x"})
        assert refusal(unknown) == (404, "agent_not_found")
        listed = await pages(client, "/v1/memory/episodic", 20, conversation_id=conversation_id)
        assert len({each["id"] for each in listed}) == len(listed) == MOST_HITS + 2
