"""Conversations and turns over HTTP: the life of a turn as a client sees it."""

import asyncio
import re
from typing import Any

import httpx

from tests.integration.conftest import Api

PAUSES = "Refund order 1042"


async def conversation(client: httpx.AsyncClient, **given: object) -> str:
    answer = await client.post("/v1/conversations", json={"agent": "refunds", **given})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def started(client: httpx.AsyncClient, conversation_id: str, message: str, **given: object) -> httpx.Response:
    return await client.post(f"/v1/conversations/{conversation_id}/turns", json={"message": message, **given})


def code(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["code"])


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, code(answer)


async def paused_turn(client: httpx.AsyncClient, conversation_id: str) -> dict[str, Any]:
    path = f"/v1/conversations/{conversation_id}/turns"
    return dict((await client.post(path, params={"wait": 20}, json={"message": PAUSES})).json())


async def pages(client: httpx.AsyncClient, path: str, limit: int, **params: str) -> list[dict[str, Any]]:
    """All that a list holds, read by pages of at most so many."""
    seen: list[dict[str, Any]] = []
    while True:
        page = (await client.get(path, params={**params, "limit": limit})).json()
        assert len(page["items"]) <= limit
        seen += page["items"]
        if page["next"] is None:
            return seen
        params["cursor"] = page["next"]


async def test_a_turn_is_accepted_and_its_final_state_has_every_field_of_the_contract(api: Api) -> None:
    async with api.client() as client:
        conversation_id = await conversation(client, title="First", metadata={"k": [1, None]})
        accepted = await started(client, conversation_id, "/echo one two")
        assert accepted.status_code == 202
        assert accepted.json().keys() == {"turn_id", "conversation_id", "status", "message_id", "events"}
        turn_id = accepted.json()["turn_id"]
        await client.get(accepted.json()["events"])
        turn = (await client.get(f"/v1/turns/{turn_id}")).json()
        wanted = {
            "turn_id", "conversation_id", "agent", "topology", "status", "answer", "error", "usage", "waiting_for",
            "nodes", "attempts", "started_at", "ended_at", "events",
        }  # fmt: skip
        assert wanted <= turn.keys()
        assert (turn["status"], turn["answer"], turn["error"]) == ("completed", "one two", None)
        assert turn["usage"].keys() == {"input_tokens", "output_tokens", "cached_tokens", "tokens_used", "cost_usd"}
        assert turn["nodes"][0] == "system_prompt_node" and turn["nodes"][-1] == "output_format"
        messages = (await client.get(f"/v1/conversations/{conversation_id}/messages")).json()["items"]
        assert [(m["role"], m["content"]) for m in messages] == [("user", "/echo one two"), ("assistant", "one two")]


async def test_wait_answers_200_with_the_turn_when_it_ends_in_time_and_202_when_not(api: Api) -> None:
    async with api.client() as client:
        path = f"/v1/conversations/{await conversation(client)}/turns"
        ended = await client.post(path, params={"wait": 20}, json={"message": "/echo done"})
        assert (ended.status_code, ended.json()["answer"]) == (200, "done")
        late = await client.post(path, params={"wait": 0.05}, json={"message": "/echo " + "word " * 40})
        assert (late.status_code, "answer" in late.json()) == (202, False)


async def test_execute_runs_the_whole_pipeline_and_answers_with_the_final_state(api: Api) -> None:
    async with api.client() as client:
        answer = await client.post("/v1/execute", json={"agent": "refunds", "message": "/echo at once"})
        assert (answer.status_code, answer.json()["answer"]) == (200, "at once")
        again = {"agent": "refunds", "message": "/echo more", "conversation_id": answer.json()["conversation_id"]}
        more = await client.post("/v1/execute", json=again)
        assert more.json()["conversation_id"] == answer.json()["conversation_id"]
        paused = await client.post("/v1/execute", json={"agent": "refunds", "message": PAUSES})
        assert (paused.status_code, paused.json()["status"]) == (200, "awaiting_approval")
        assert paused.json()["waiting_for"].keys() >= {"kind", "ids", "since", "expires_at"}
        await client.post(f"/v1/turns/{paused.json()['turn_id']}/stop")


async def test_a_busy_conversation_names_its_turn_and_what_it_waits_for(api: Api) -> None:
    async with api.client() as client:
        conversation_id = await conversation(client)
        paused = await paused_turn(client, conversation_id)
        busy = await started(client, conversation_id, "again")
        assert refusal(busy) == (409, "conversation_busy")
        details = busy.json()["error"]["details"]
        assert details["turn_id"] == paused["turn_id"]
        assert details["waiting_for"]["ids"] == paused["waiting_for"]["ids"]
        assert refusal(await client.delete(f"/v1/conversations/{conversation_id}")) == (409, "conversation_busy")
        await client.post(f"/v1/turns/{paused['turn_id']}/stop")


async def test_a_message_joins_the_open_turn_or_takes_its_place_and_a_key_sends_it_once(api: Api) -> None:
    async with api.client() as client:
        conversation_id = await conversation(client)
        path = f"/v1/conversations/{conversation_id}/turns"
        paused = await paused_turn(client, conversation_id)
        body = {"message": "/echo by the way", "on_busy": "steer"}
        joined = [await client.post(path, headers={"Idempotency-Key": "one"}, json=body) for _ in range(2)]
        assert [(each.status_code, each.json()["joined"]) for each in joined] == [(202, True)] * 2
        assert joined[0].json() == joined[1].json() and joined[0].json()["turn_id"] == paused["turn_id"]
        assert joined[0].json()["status"] == "awaiting_approval"
        body = {"message": "/echo instead", "on_busy": "replace"}
        other = await client.post(path, params={"wait": 20}, json=body)
        assert (other.status_code, other.json()["answer"]) == (200, "instead")
        old = (await client.get(f"/v1/turns/{paused['turn_id']}")).json()
        assert (old["status"], old["replaced_by"]) == ("replaced", other.json()["turn_id"])
        events = (await client.get(f"/v1/turns/{paused['turn_id']}/events")).text
        left = re.search(r'"left_over":"([^"]+)"', events)
        assert left is not None and "event: message.joined" in events
        assert old["left_over"] == left[1] and other.json()["left_over"] is None
        await client.get(f"/v1/turns/{left[1]}/events")
        assert (await client.get(f"/v1/turns/{left[1]}")).json()["answer"] == "by the way"


async def test_a_queued_turn_can_be_stopped_and_the_running_one_keeps_the_conversation(api: Api) -> None:
    async with api.client() as client:
        conversation_id = await conversation(client)
        paused = await paused_turn(client, conversation_id)
        first = (await started(client, conversation_id, "/echo first", on_busy="queue")).json()
        second = (await started(client, conversation_id, "/echo second", on_busy="queue")).json()
        assert (first["status"], second["status"]) == ("queued", "queued")
        stopped = await client.post(f"/v1/turns/{first['turn_id']}/stop")
        assert (stopped.status_code, stopped.json()["status"]) == (202, "stopped")
        shown = (await client.get(f"/v1/conversations/{conversation_id}")).json()
        assert shown["active_turn_id"] == paused["turn_id"], "stopping a queued turn starts nothing"
        assert (await client.get(f"/v1/turns/{second['turn_id']}")).json()["status"] == "queued"
        await client.post(f"/v1/turns/{paused['turn_id']}/stop")
        await client.get(f"/v1/turns/{second['turn_id']}/events")
        assert (await client.get(f"/v1/turns/{second['turn_id']}")).json()["answer"] == "second"


async def test_a_stop_is_idempotent_and_ends_the_turn(api: Api) -> None:
    async with api.client() as client:
        conversation_id = await conversation(client)
        turn_id = (await started(client, conversation_id, "/echo " + "word " * 1_000)).json()["turn_id"]
        for _ in range(2):
            assert (await client.post(f"/v1/turns/{turn_id}/stop")).status_code == 202
        stream = (await client.get(f"/v1/turns/{turn_id}/events")).text
        assert "event: stopped" in stream
        assert (await client.get(f"/v1/turns/{turn_id}")).json()["status"] == "stopped"
        assert (await client.post(f"/v1/turns/{turn_id}/stop")).json()["status"] == "stopped"


async def test_the_same_key_and_body_start_one_turn_however_many_ask_at_once(api: Api) -> None:
    async with api.client() as client:
        conversation_id, key = await conversation(client), {"Idempotency-Key": "once"}
        path = f"/v1/conversations/{conversation_id}/turns"
        asked = [client.post(path, headers=key, json={"message": "/echo hi"}) for _ in range(12)]
        answers = await asyncio.gather(*asked)
        assert {answer.status_code for answer in answers} == {202}
        assert len({answer.json()["turn_id"] for answer in answers}) == 1
        other = await client.post(path, headers=key, json={"message": "/echo other"})
        assert refusal(other) == (422, "idempotency_key_reused")
        listed = (await client.get("/v1/turns", params={"conversation": conversation_id})).json()["items"]
        assert len(listed) == 1
        waited = await client.post(path, headers=key, params={"wait": 20}, json={"message": "/echo hi"})
        assert (waited.status_code, waited.json()["answer"]) == (200, "hi")


async def test_keys_are_of_a_principal_a_route_and_a_day_and_a_refused_request_frees_its_own(api: Api) -> None:
    key = {"Idempotency-Key": "shared"}
    body = {"agent": "refunds"}
    async with api.client() as client, api.client("reviewer") as other:
        mine, again = [await client.post("/v1/conversations", headers=key, json=body) for _ in range(2)]
        assert again.json() == mine.json() and again.status_code == 201
        assert (await other.post("/v1/conversations", headers=key, json=body)).json()["id"] != mine.json()["id"]
        turn = await client.post(f"/v1/conversations/{mine.json()['id']}/turns", headers=key, json={"message": "hi"})
        assert turn.status_code == 202
        retried = {"Idempotency-Key": "retried"}
        for agent, status in (("nobody", 404), ("refunds", 201)):
            answer = await client.post("/v1/conversations", headers=retried, json={"agent": agent})
            assert answer.status_code == status
        async with api.services.db.transaction("local") as tx:
            await tx.execute("UPDATE idempotency SET created_at = now() - interval '25 hours' WHERE key = 'retried'")
        later = await client.post("/v1/conversations", headers=retried, json={"agent": "refunds", "title": "new"})
        assert later.status_code == 201 and later.json()["id"] != answer.json()["id"], "forgotten after a day"


async def test_conversations_are_listed_by_pages_filtered_changed_and_hidden(api: Api) -> None:
    async with api.client("admin") as client:
        made = [await conversation(client, title=f"Topic {number}") for number in range(5)]
        assert [item["id"] for item in await pages(client, "/v1/conversations", 2)] == made[::-1]
        found = (await client.get("/v1/conversations", params={"title": "topic 3"})).json()["items"]
        assert [item["id"] for item in found] == [made[3]]
        assert len((await client.get("/v1/conversations", params={"limit": 5_000})).json()["items"]) == 5, "clamped"
        path = f"/v1/conversations/{made[0]}"
        changed = await client.patch(path, json={"title": "Renamed", "metadata": {"a": 1}})
        assert (changed.json()["title"], changed.json()["metadata"]) == ("Renamed", {"a": 1})
        assert (await client.delete(path)).status_code == 204
        assert (await client.get(path)).status_code == 404
        assert (await started(client, made[0], "hello")).status_code == 404


async def test_turns_are_listed_newest_first_by_pages_and_filters(api: Api) -> None:
    async with api.client() as client:
        conversation_id = await conversation(client)
        path = f"/v1/conversations/{conversation_id}/turns"
        sent = [await client.post(path, params={"wait": 20}, json={"message": f"/echo {n}"}) for n in range(3)]
        made = [each.json()["turn_id"] for each in sent]
        listed = await pages(client, "/v1/turns", 2, conversation=conversation_id)
        assert [turn["turn_id"] for turn in listed] == made[::-1]
        none = await client.get("/v1/turns", params={"conversation": conversation_id, "status": "failed"})
        assert none.json()["items"] == []
        assert (await client.get("/v1/turns", params={"agent": "nobody"})).json()["items"] == []


async def test_one_message_more_than_the_queue_takes_is_answered_429(api: Api) -> None:
    async with api.client("admin") as client:
        conversation_id = await conversation(client)
        await paused_turn(client, conversation_id)
        sent = [
            await started(client, conversation_id, "/echo x", on_busy="queue")
            for _ in range(api.services.caps.queue_depth + 1)
        ]
        assert [each.status_code for each in sent] == [202] * api.services.caps.queue_depth + [429]
        assert code(sent[-1]) == "queue_full" and int(sent[-1].headers["retry-after"]) > 0
        for turn in (await client.get("/v1/turns", params={"conversation": conversation_id})).json()["items"]:
            await client.post(f"/v1/turns/{turn['turn_id']}/stop")  # newest first, so that none of them begins
