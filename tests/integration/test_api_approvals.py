"""Approvals and effects over HTTP: what a reviewer sees, and every way a decision is refused."""

import asyncio
from dataclasses import dataclass

import httpx

from perdure.store.events.live import WOKEN_BY_EVENTS, channel
from tests.integration.conftest import Api
from tests.integration.test_api_turns import code, conversation, pages, refusal


@dataclass(frozen=True)
class Paused:
    """A turn that waits for one approval."""

    turn_id: str
    approval: dict[str, object]

    @property
    def path(self) -> str:
        return f"/v1/approvals/{self.approval['id']}"

    def body(self, decision: str = "approve", **given: object) -> dict[str, object]:
        return {"decision": decision, "digest": self.approval["digest"], **given}


async def paused(api: Api, message: str = "Refund order 1042", by: str = "requester") -> Paused:
    async with api.client(by) as client:
        path = f"/v1/conversations/{await conversation(client)}/turns"
        turn = (await client.post(path, params={"wait": 20}, json={"message": message})).json()
        assert turn["status"] == "awaiting_approval", turn
        approval = (await client.get(f"/v1/approvals/{turn['waiting_for']['ids'][0]}")).json()
    return Paused(turn["turn_id"], approval)


async def ended(client: httpx.AsyncClient, turn_id: str) -> dict[str, object]:
    await client.get(f"/v1/turns/{turn_id}/events")
    return dict((await client.get(f"/v1/turns/{turn_id}")).json())


async def test_an_approval_shows_the_exact_call_and_all_that_a_reviewer_needs(api: Api) -> None:
    asked = await paused(api)
    async with api.client("reviewer") as reviewer:
        shown = (await reviewer.get(asked.path)).json()
    wanted = {
        "id", "status", "agent", "tool", "args", "schema", "digest", "rule", "prompt_excerpt", "history", "expires_at",
        "version", "allowed_decisions", "links", "turn_id", "conversation_id", "requested_by", "risk", "effect",
        "reviewers", "quorum", "votes", "assignee", "fallback", "claimed_by", "claimed_until", "escalated_at",
        "on_timeout", "ready_at", "reject_reasons", "reviewer_role", "requested_at",
    }  # fmt: skip
    assert wanted <= shown.keys()
    assert (shown["tool"], shown["args"], shown["status"]) == ("refund", {"order": "1042"}, "pending")
    assert shown["prompt_excerpt"] == "Refund order 1042"
    assert shown["allowed_decisions"] == ["approve", "edit", "reject", "respond"]
    assert asked.approval["allowed_decisions"] == [], "who asked for it decides nothing"
    assert [entry["what"] for entry in shown["history"]] == ["approval.opened"]


async def test_a_rejection_needs_a_reason_reaches_the_turn_and_stands(api: Api) -> None:
    asked = await paused(api)
    async with api.client("reviewer") as client:
        bare = await client.post(f"{asked.path}/decision", json=asked.body("reject"))
        assert refusal(bare) == (422, "reason_required")
        done = await client.post(f"{asked.path}/decision", json=asked.body("reject", comment="wrong order"))
        assert (done.status_code, done.json()["status"], done.json()["decided_by"]) == (200, "rejected", "reviewer")
        turn = await ended(client, asked.turn_id)
        assert turn["status"] == "completed" and "wrong order" in str(turn["answer"])
        shown = (await client.get(asked.path)).json()
        assert [entry["what"] for entry in shown["history"]] == ["approval.opened", "approval.decided"]
        assert shown["allowed_decisions"] == []


async def test_a_decision_is_refused_in_the_order_of_the_contract(api: Api) -> None:
    asked = await paused(api)
    wrong = asked.body("reject", digest="0" * 64)  # wrong digest and no reason
    async with api.client("reviewer") as reviewer, api.client() as requester:
        nobody = await reviewer.post(f"/v1/approvals/{asked.turn_id}/decision", json=wrong)
        assert refusal(nobody) == (404, "approval_not_found")
        assert refusal(await requester.post(f"{asked.path}/decision", json=wrong)) == (403, "role_required")
        assert refusal(await reviewer.post(f"{asked.path}/decision", json=wrong)) == (409, "digest_differs")
        assert (await reviewer.get(asked.path)).json()["status"] == "pending"
        assert (await reviewer.post(f"{asked.path}/decision", json=asked.body())).status_code == 200
        second = await reviewer.post(f"{asked.path}/decision", json=wrong)
        assert refusal(second) == (409, "already_decided")
        first = second.json()["error"]["details"]["decision"]
        assert (first["type"], first["by"]) == ("approve", "reviewer")
        await ended(reviewer, asked.turn_id)


async def test_a_decision_after_a_stop_is_told_what_became_of_the_call(api: Api) -> None:
    asked = await paused(api)
    async with api.client("admin") as client:
        await client.post(f"/v1/turns/{asked.turn_id}/stop")
        at_once = await client.post(f"{asked.path}/decision", json=asked.body())
        await ended(client, asked.turn_id)
        after = await client.post(f"{asked.path}/decision", json=asked.body())
    assert at_once.status_code == after.status_code == 409
    if code(at_once) == "turn_stopped":
        assert at_once.json()["error"]["details"].keys() == {"turn_id", "stopped_at"}
    assert code(after) == "already_decided"
    assert after.json()["error"]["details"] == {"status": "cancelled", "decision": {}}


async def test_an_edit_is_checked_against_the_schema_and_both_versions_are_on_record(api: Api) -> None:
    asked = await paused(api)
    async with api.client("reviewer") as client:
        bad = await client.post(f"{asked.path}/decision", json=asked.body("edit", args={"order": 7}))
        assert refusal(bad) == (422, "args_invalid")
        assert [each["field"] for each in bad.json()["error"]["details"]["fields"]] == ["order"]
        done = await client.post(f"{asked.path}/decision", json=asked.body("edit", args={"order": "1043"}))
        assert done.status_code == 200, done.text
        assert done.json()["decision"]["args"] == {"order": "1043"}
        assert done.json()["args"] == {"order": "1042"}, "what was asked for stays on record"
        assert done.json()["decision"]["digest"] != asked.approval["digest"]
        await ended(client, asked.turn_id)


async def test_a_response_answers_the_model_instead_of_running_the_call(api: Api) -> None:
    asked = await paused(api)
    async with api.client("reviewer") as client:
        empty = await client.post(f"{asked.path}/decision", json=asked.body("respond"))
        assert refusal(empty) == (422, "comment_required")
        body, key = asked.body("respond", comment="ask the shop first"), {"Idempotency-Key": "decide-once"}
        told, again = [await client.post(f"{asked.path}/decision", headers=key, json=body) for _ in range(2)]
        assert (told.status_code, told.json()["status"]) == (200, "responded")
        assert (again.status_code, again.json()) == (200, told.json()), "a key is answered again as before"
        assert (await ended(client, asked.turn_id))["status"] == "completed"


async def test_the_queue_is_filtered_and_paged_and_a_requester_sees_only_the_own_ones(api: Api) -> None:
    async with api.client("reviewer") as reviewer, api.client() as requester:
        asked = [await paused(api) for _ in range(3)]
        foreign = await paused(api, by="admin")
        ids = [each.approval["id"] for each in asked]
        listed = [item["id"] for item in await pages(reviewer, "/v1/approvals", 2, status="pending")]
        assert len(listed) == len(set(listed))
        assert {*ids, foreign.approval["id"]} <= set(listed)
        own = [item["id"] for item in (await requester.get("/v1/approvals")).json()["items"]]
        assert foreign.approval["id"] not in own and set(ids) <= set(own)
        assert (await requester.get(foreign.path)).status_code == 404
        one = (await reviewer.get("/v1/approvals", params={"turn": asked[0].turn_id})).json()["items"]
        assert [item["id"] for item in one] == [ids[0]]
        assert (await reviewer.get("/v1/approvals", params={"tool": "nothing"})).json()["items"] == []
        soon: dict[str, str | int] = {"status": "pending", "expiring": 60}
        assert (await reviewer.get("/v1/approvals", params=soon)).json()["items"] == []
        async with api.client("admin") as admin:
            mine = [item["id"] for item in (await admin.get("/v1/approvals", params={"mine": True})).json()["items"]]
        assert foreign.approval["id"] not in mine and set(ids) <= set(mine)
        assert (await requester.get("/v1/approvals", params={"mine": True})).json()["items"] == []
        for each in (*asked, foreign):
            await reviewer.post(f"/v1/turns/{each.turn_id}/stop")


async def test_settling_an_effect_that_is_not_there_or_not_open_is_refused(api: Api) -> None:
    body = {"outcome": "happened", "comment": "saw it in the ledger"}
    async with api.client("reviewer") as client:
        assert refusal(await client.post("/v1/effects/pdk_none/settle", json=body)) == (404, "effect_not_found")
        asked = await paused(api)
        key = next(e["key"] for e in (await client.get("/v1/effects")).json()["items"] if e["turn_id"] == asked.turn_id)
        assert refusal(await client.post(f"/v1/effects/{key}/settle", json=body)) == (409, "already_settled")
        async with api.client() as requester:
            assert refusal(await requester.post(f"/v1/effects/{key}/settle", json=body)) == (403, "role_required")
        await client.post(f"/v1/turns/{asked.turn_id}/stop")


async def test_effects_are_paged_without_losing_calls_of_one_round(api: Api) -> None:
    asked = await paused(api, "Refund orders 1042 and 1043")
    async with api.client("reviewer") as client:
        listed = await pages(client, "/v1/effects", 1)
        seen = [item["key"] for item in listed if item["turn_id"] == asked.turn_id]
        assert len(seen) == len(set(seen)) == 2
        await client.post(f"/v1/turns/{asked.turn_id}/stop")


async def test_settling_an_effect_wakes_the_readers_of_its_conversation(api: Api) -> None:
    """Of a turn that was stopped, so that nothing else wakes them."""
    asked = await paused(api)
    services, conversation_id = api.services, str(asked.approval["conversation_id"])
    async with api.client("reviewer") as client:
        await client.post(f"/v1/turns/{asked.turn_id}/stop")
        assert (await ended(client, asked.turn_id))["status"] == "stopped"
        async with services.db.transaction("local") as tx:
            lost = "UPDATE tool_calls SET state = 'outcome_unknown' WHERE turn_id = $1 RETURNING key"
            key = await tx.fetchval(lost, asked.turn_id)
        async with services.valkey.client.pubsub(ignore_subscribe_messages=True) as heard:
            await heard.subscribe(channel(conversation_id))
            while await heard.get_message(timeout=0.5) is not None:
                pass  # what the end still had to say
            body = {"outcome": "happened", "comment": "saw it in the ledger"}
            assert (await client.post(f"/v1/effects/{key}/settle", json=body)).status_code == 200
            message = await heard.get_message(timeout=20)
        assert message is not None and message["data"] == WOKEN_BY_EVENTS


async def test_a_preview_is_made_by_a_worker_kept_with_its_time_and_stands_in_nobodys_way(api: Api) -> None:
    asked = await paused(api)
    async with api.client() as requester, api.client("reviewer") as reviewer:
        assert (await requester.get(asked.path)).json()["preview"] is None
        assert code(await requester.post(f"{asked.path}/preview")) == "role_required"
        assert (await reviewer.get(asked.path)).json()["preview"] == {}
        both = await asyncio.gather(*(reviewer.post(f"{asked.path}/preview") for _ in range(2)))
        assert [each.status_code for each in both] == [200, 200]
        shown = (await reviewer.get(asked.path)).json()
        assert "payments_url" in shown["preview"]["fault"]
        assert shown["preview"]["is_current"] and shown["preview"]["at"] > shown["requested_at"]
        assert (shown["version"], shown["status"], len(shown["history"])) == (1, "pending", 1)
        decided = await reviewer.post(f"{asked.path}/decision", json=asked.body("reject", comment="no"))
        assert decided.status_code == 200 and decided.json()["preview"] == shown["preview"]
        assert code(await reviewer.post(f"{asked.path}/preview")) == "already_decided"
        note = await paused(api, "Send a goodwill note for order 1042")
        assert (await reviewer.get(note.path)).json()["preview"] is None
        assert code(await reviewer.post(f"{note.path}/preview")) == "no_preview"
        calls = (await reviewer.get(f"/v1/turns/{note.turn_id}/calls")).json()["items"]
        models = [each for each in calls if each["kind"] == "model"]
        assert models and all(each["state"] == "done" and each["seconds"] >= 0 for each in models)
        (waits,) = [each for each in calls if each["kind"] == "tool" and each["state"] == "planned"]
        assert (waits["name"], waits["approval_id"], waits["started_at"]) == ("send_note", note.approval["id"], None)
    async with api.client() as requester:
        assert (await requester.get(f"/v1/turns/{note.turn_id}/calls")).status_code == 200
        await requester.post(f"/v1/turns/{note.turn_id}/stop")
        for each in (asked, note):
            await ended(requester, each.turn_id)
