"""Conversations and turns over HTTP: the life of a turn as a client sees it, and its story as a person reads it."""

import asyncio
from typing import Any

import httpx

from tests.doubles.message_script import Line
from tests.harness import Harness
from tests.integration.conftest import Api, Caller
from tests.integration.test_turn_admission import ask, end, steer

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


async def test_a_turn_is_accepted_and_its_final_state_has_every_field_of_the_contract(requester: Caller) -> None:
    conversation_id = await conversation(requester, title="First", metadata={"k": [1, None]})
    accepted = await started(requester, conversation_id, "/echo one two")
    assert accepted.status_code == 202
    assert accepted.json().keys() == {"turn_id", "conversation_id", "status", "message_id", "events"}
    turn_id = accepted.json()["turn_id"]
    await requester.get(accepted.json()["events"])
    turn = (await requester.get(f"/v1/turns/{turn_id}")).json()
    wanted = {
        "turn_id", "conversation_id", "agent", "topology", "status", "answer", "error", "usage", "waiting_for",
        "nodes", "attempts", "started_at", "ended_at", "events",
    }  # fmt: skip
    assert wanted <= turn.keys()
    assert (turn["status"], turn["answer"], turn["error"]) == ("completed", "one two", None)
    assert turn["usage"].keys() == {"input_tokens", "output_tokens", "cached_tokens", "tokens_used", "cost_usd"}
    assert turn["nodes"][0] == "system_prompt_node" and turn["nodes"][-1] == "output_format"
    messages = (await requester.get(f"/v1/conversations/{conversation_id}/messages")).json()["items"]
    assert [(m["role"], m["content"]) for m in messages] == [("user", "/echo one two"), ("assistant", "one two")]


async def test_wait_answers_200_with_the_turn_when_it_ends_in_time_and_202_when_not(requester: Caller) -> None:
    path = f"/v1/conversations/{await conversation(requester)}/turns"
    ended = await requester.post(path, params={"wait": 20}, json={"message": "/echo done"})
    assert (ended.status_code, ended.json()["answer"]) == (200, "done")
    late = await requester.post(path, params={"wait": 0.05}, json={"message": "/echo " + "word " * 40})
    assert (late.status_code, "answer" in late.json()) == (202, False)


async def test_execute_runs_the_whole_pipeline_and_answers_with_the_final_state(requester: Caller) -> None:
    answer = await requester.post("/v1/execute", json={"agent": "refunds", "message": "/echo at once"})
    assert (answer.status_code, answer.json()["answer"]) == (200, "at once")
    again = {"agent": "refunds", "message": "/echo more", "conversation_id": answer.json()["conversation_id"]}
    more = await requester.post("/v1/execute", json=again)
    assert more.json()["conversation_id"] == answer.json()["conversation_id"]
    paused = await requester.post("/v1/execute", json={"agent": "refunds", "message": PAUSES})
    assert (paused.status_code, paused.json()["status"]) == (200, "awaiting_approval")
    assert paused.json()["waiting_for"].keys() >= {"kind", "ids", "since", "expires_at"}
    await requester.post(f"/v1/turns/{paused.json()['turn_id']}/stop")


async def test_a_busy_conversation_names_its_turn_and_what_it_waits_for(requester: Caller) -> None:
    conversation_id = await conversation(requester)
    paused = await paused_turn(requester, conversation_id)
    busy = await started(requester, conversation_id, "again")
    assert refusal(busy) == (409, "conversation_busy")
    details = busy.json()["error"]["details"]
    assert details["turn_id"] == paused["turn_id"]
    assert details["waiting_for"]["ids"] == paused["waiting_for"]["ids"]
    assert refusal(await requester.delete(f"/v1/conversations/{conversation_id}")) == (409, "conversation_busy")
    await requester.post(f"/v1/turns/{paused['turn_id']}/stop")


async def test_a_message_joins_the_open_turn_or_takes_its_place_and_a_key_sends_it_once(requester: Caller) -> None:
    conversation_id = await conversation(requester)
    path = f"/v1/conversations/{conversation_id}/turns"
    paused = await paused_turn(requester, conversation_id)
    body = {"message": "/echo by the way", "on_busy": "steer"}
    joined = [await requester.post(path, headers={"Idempotency-Key": "one"}, json=body) for _ in range(2)]
    assert [(each.status_code, each.json()["joined"]) for each in joined] == [(202, True)] * 2
    assert joined[0].json() == joined[1].json() and joined[0].json()["turn_id"] == paused["turn_id"]
    assert joined[0].json()["status"] == "awaiting_approval"
    body = {"message": "/echo instead", "on_busy": "replace"}
    other = await requester.post(path, params={"wait": 20}, json=body)
    assert (other.status_code, other.json()["answer"]) == (200, "instead")
    old = (await requester.get(f"/v1/turns/{paused['turn_id']}")).json()
    assert (old["status"], old["replaced_by"]) == ("replaced", other.json()["turn_id"])
    await requester.get(f"/v1/turns/{old['left_over']}/events")
    assert (await requester.get(f"/v1/turns/{old['left_over']}")).json()["answer"] == "by the way"


async def test_a_stop_is_idempotent_and_ends_the_turn(requester: Caller) -> None:
    conversation_id = await conversation(requester)
    turn_id = (await started(requester, conversation_id, "/echo " + "word " * 1_000)).json()["turn_id"]
    for _ in range(2):
        assert (await requester.post(f"/v1/turns/{turn_id}/stop")).status_code == 202
    assert "event: stopped" in (await requester.get(f"/v1/turns/{turn_id}/events")).text
    assert (await requester.get(f"/v1/turns/{turn_id}")).json()["status"] == "stopped"
    assert (await requester.post(f"/v1/turns/{turn_id}/stop")).json()["status"] == "stopped"


async def test_the_same_key_and_body_start_one_turn_however_many_ask_at_once(requester: Caller) -> None:
    conversation_id, key = await conversation(requester), {"Idempotency-Key": "once"}
    path = f"/v1/conversations/{conversation_id}/turns"
    asked = [requester.post(path, headers=key, json={"message": "/echo hi"}) for _ in range(12)]
    answers = await asyncio.gather(*asked)
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["turn_id"] for answer in answers}) == 1
    other = await requester.post(path, headers=key, json={"message": "/echo other"})
    assert refusal(other) == (422, "idempotency_key_reused")
    assert len((await requester.get("/v1/turns", params={"conversation": conversation_id})).json()["items"]) == 1
    waited = await requester.post(path, headers=key, params={"wait": 20}, json={"message": "/echo hi"})
    assert (waited.status_code, waited.json()["answer"]) == (200, "hi")


async def test_an_idempotency_key_is_valid_for_a_user_a_route_and_a_day(api: Api) -> None:
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
        await api.write("UPDATE idempotency SET created_at = now() - interval '25 hours' WHERE key = 'retried'")
        later = await client.post("/v1/conversations", headers=retried, json={"agent": "refunds", "title": "new"})
        assert later.status_code == 201 and later.json()["id"] != answer.json()["id"], "forgotten after a day"


async def test_conversations_are_listed_by_pages_filtered_changed_and_hidden(admin: Caller) -> None:
    made = [await conversation(admin, title=f"Topic {number}") for number in range(5)]
    assert [item["id"] for item in await pages(admin, "/v1/conversations", 2)] == made[::-1]
    found = (await admin.get("/v1/conversations", params={"title": "topic 3"})).json()["items"]
    assert [item["id"] for item in found] == [made[3]]
    assert len((await admin.get("/v1/conversations", params={"limit": 5_000})).json()["items"]) == 5, "clamped"
    path = f"/v1/conversations/{made[0]}"
    changed = await admin.patch(path, json={"title": "Renamed", "metadata": {"a": 1}})
    assert (changed.json()["title"], changed.json()["metadata"]) == ("Renamed", {"a": 1})
    assert (await admin.delete(path)).status_code == 204
    assert (await admin.get(path)).status_code == 404
    assert (await started(admin, made[0], "hello")).status_code == 404


async def test_turns_are_listed_newest_first_by_pages_and_filters(requester: Caller) -> None:
    conversation_id = await conversation(requester)
    path = f"/v1/conversations/{conversation_id}/turns"
    sent = [await requester.post(path, params={"wait": 20}, json={"message": f"/echo {n}"}) for n in range(3)]
    made = [each.json()["turn_id"] for each in sent]
    listed = await pages(requester, "/v1/turns", 2, conversation=conversation_id)
    assert [turn["turn_id"] for turn in listed] == made[::-1]
    none = await requester.get("/v1/turns", params={"conversation": conversation_id, "status": "failed"})
    assert none.json()["items"] == []
    assert (await requester.get("/v1/turns", params={"agent": "nobody"})).json()["items"] == []


async def story(client: httpx.AsyncClient, conversation_id: str, **query: object) -> httpx.Response:
    return await client.get(f"/v1/conversations/{conversation_id}/story", params=query)  # type: ignore[arg-type]


async def test_a_conversation_view_places_messages_and_shows_open_requests(api: Api, harness: Harness) -> None:
    address, _ = await harness.start(Line("first"), Line("second"))
    conversation_id = address.conversation_id
    await steer(harness, address, "heard")
    await ask(harness, address, 1)
    await steer(harness, address, "later")
    async with api.client() as client, api.client("reviewer") as reviewer:
        assert (await story(reviewer, conversation_id)).json()["own"] is False
        assert (await story(reviewer, conversation_id, turn="nothing")).status_code == 404
        elsewhere, _ = await harness.start(Line("other"))
        mixed = await story(reviewer, conversation_id, turn=elsewhere.turn_id)
        assert (mixed.status_code, mixed.json()["items"]) == (200, [])
        told = (await story(client, conversation_id)).json()
        assert told["own"] is True and told["next"] is None
        (turn,) = told["items"]
        assert [(each["kind"], each["call_id"]) for each in turn["segments"]] == [("message", "m1"), ("text", "m1")]
        assert [each["waits"] for each in turn["said"]] == [False, True]
        last = await harness.value("SELECT max(seq) FROM events WHERE conversation_id = $1", conversation_id)
        assert told["seq"] == last
        await end(harness, address)
        newer, older = (await story(client, conversation_id)).json()["items"]
        assert (older["turn_id"], older["status"]) == (address.turn_id, "completed"), "the newest is the first"
        assert [each["waits"] for each in newer["said"]] == [False] and not newer["segments"]
        one = (await story(client, conversation_id, turn=newer["turn_id"])).json()["items"]
        assert [each["turn_id"] for each in one] == [newer["turn_id"]]
        first = (await story(client, conversation_id, limit=1)).json()
        second = (await story(client, conversation_id, limit=1, cursor=first["next"])).json()
        assert [each["items"][0]["turn_id"] for each in (first, second)] == [newer["turn_id"], address.turn_id]
