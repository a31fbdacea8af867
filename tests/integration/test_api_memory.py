"""/v1/memory over HTTP: one's own conversations only, typed refusals, and what is kept can be found."""

import httpx
import pytest

from perdure.api.routes.memory import MOST_HITS
from perdure.store.database import new_id
from perdure.store.memory import working_memory
from tests.integration.conftest import Api
from tests.integration.test_api_turns import code, conversation


def working(conversation_id: str) -> str:
    return f"/v1/memory/working/{conversation_id}"


async def test_fields_are_put_merged_read_and_removed(api: Api) -> None:
    async with api.client() as client:
        path = working(await conversation(client))
        assert (await client.get(path)).json()["fields"] == {}
        put = await client.put(path, json={"fields": {"a": 1, "b": {"c": []}}})
        assert put.status_code == 200 and put.json()["fields"] == {"a": 1, "b": {"c": []}}
        merged = await client.put(path, json={"fields": {"a": None, "d": "x", "e": 2}, "ttl_seconds": 60})
        assert merged.json()["fields"] == {"b": {"c": []}, "d": "x", "e": 2} and merged.json()["bytes"] == 16
        assert (await client.delete(path, params={"field": ["d", "e"]})).status_code == 204
        assert (await client.get(path)).json()["fields"] == {"b": {"c": []}}
        assert (await client.delete(path)).status_code == 204
        assert (await client.get(path)).json()["fields"] == {}


async def test_more_than_fits_is_413_with_both_sizes_and_nothing_is_written(api: Api) -> None:
    async with api.client() as client:
        path = working(await conversation(client))
        await client.put(path, json={"fields": {"a": 1}})
        answer = await client.put(path, json={"fields": {"big": "x" * 65_536}})
        assert answer.status_code == 413 and code(answer) == "working_memory_full"
        details = answer.json()["error"]["details"]
        assert details["most_bytes"] == working_memory.MOST_BYTES < details["bytes"]
        assert (await client.get(path)).json()["fields"] == {"a": 1}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"fields": []},
        {"fields": {"": 1}},
        {"fields": {"a b": 1}},
        {"fields": {"x" * 65: 1}},
        {"fields": {}, "ttl_seconds": 0},
        {"fields": {}, "ttl_seconds": "60"},
        {"fields": {}, "ttl_seconds": 10**12},
        {"fields": {}, "other": 1},
    ],
)
async def test_a_body_that_does_not_fit_is_422(api: Api, body: dict[str, object]) -> None:
    async with api.client() as client:
        answer = await client.put(working(await conversation(client)), json=body)
        assert (answer.status_code, code(answer)) == (422, "invalid_input")


async def test_memory_is_its_users_own_even_where_a_role_reads_the_turns(api: Api) -> None:
    async with api.client() as owner:
        conversation_id = await conversation(owner)
        await owner.put(working(conversation_id), json={"fields": {"mine": 1}})
        episode = {"conversation_id": conversation_id, "summary": "mine alone"}
        assert (await owner.post("/v1/memory/episodic", json=episode)).status_code == 201
    for name in ("reviewer", "admin"):
        async with api.client(name) as client:
            answers: list[httpx.Response] = [
                await client.get(working(conversation_id)),
                await client.put(working(conversation_id), json={"fields": {}}),
                await client.delete(working(conversation_id)),
                await client.post("/v1/memory/episodic", json=episode),
                await client.get("/v1/memory/episodic", params={"conversation_id": conversation_id}),
            ]
            assert {(each.status_code, code(each)) for each in answers} == {(404, "conversation_not_found")}
            found = await client.post("/v1/memory/episodic/search", json={"agent": "refunds", "query": "mine alone"})
            assert found.json()["items"] == []
    async with api.client(None) as nobody:
        assert (await nobody.get(working(conversation_id))).status_code == 401


@pytest.mark.parametrize("name", ["nonsense", new_id()])
async def test_a_conversation_that_is_not_there_is_404_on_every_route(api: Api, name: str) -> None:
    async with api.client() as client:
        answers = [
            await client.get(working(name)),
            await client.put(working(name), json={"fields": {"a": 1}}),
            await client.delete(working(name)),
            await client.post("/v1/memory/episodic", json={"conversation_id": name, "summary": "x"}),
            await client.get("/v1/memory/episodic", params={"conversation_id": name}),
        ]
        assert {(each.status_code, code(each)) for each in answers} == {(404, "conversation_not_found")}


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
        unknown = await client.post("/v1/memory/episodic/search", json={"agent": "nobody", "query": "x"})
        assert (unknown.status_code, code(unknown)) == (404, "agent_not_found")
        page = await client.get("/v1/memory/episodic", params={"conversation_id": conversation_id, "limit": 20})
        params = {"conversation_id": conversation_id, "cursor": page.json()["next"]}
        rest = await client.get("/v1/memory/episodic", params=params)
        assert (len(page.json()["items"]), len(rest.json()["items"])) == (20, 2)


@pytest.mark.parametrize("limit", [True, "3", 3.0, 0, -1, None])
async def test_a_limit_that_is_no_number_of_hits_is_refused(api: Api, limit: object) -> None:
    async with api.client() as client:
        search = {"agent": "refunds", "query": "x", "limit": limit}
        answer = await client.post("/v1/memory/episodic/search", json=search)
    assert (answer.status_code, code(answer)) == (422, "invalid_input")
    assert [field["field"] for field in answer.json()["error"]["details"]["fields"]] == ["body.limit"]
