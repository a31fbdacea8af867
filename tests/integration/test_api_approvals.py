"""Approvals and effects over HTTP: what a reviewer sees, decides and is refused; claims, handovers, standing in."""

import asyncio
import operator
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from perdure.api.routes import approvals
from perdure.contracts.activities import Checked
from perdure.contracts.agents import PublishedAgent
from perdure.contracts.ids import approval_id
from perdure.contracts.turns import Routing
from perdure.core.approvals.decisions import Decision
from perdure.store.agents import published_agent
from perdure.store.approvals import reissue
from perdure.store.approvals.verdicts import refused_calls
from perdure.store.database import new_id
from perdure.store.events.live import WOKEN_BY_EVENTS, channel
from perdure.temporal import workflow_client
from tests.harness import Harness, own_queues
from tests.integration.conftest import Api, Caller
from tests.integration.test_api_turns import code, conversation, pages, refusal
from tests.integration.test_turn_admission import steer


@dataclass(frozen=True)
class Paused:
    turn_id: str
    approval: dict[str, object]

    @property
    def path(self) -> str:
        return f"/v1/approvals/{self.approval['id']}"

    def body(self, decision: str = "approve", **given: object) -> dict[str, object]:
        return {"decision": decision, "digest": self.approval["digest"], **given}

    async def decided(self, client: httpx.AsyncClient, decision: str = "approve", **given: object) -> httpx.Response:
        return await client.post(f"{self.path}/decision", json=self.body(decision, **given))


async def paused(api: Api, message: str = "Refund order 1042", by: str = "requester") -> Paused:
    async with api.client(by) as client:
        path = f"/v1/conversations/{await conversation(client)}/turns"
        turn = (await client.post(path, params={"wait": 20}, json={"message": message})).json()
        assert turn["status"] == "awaiting_approval", turn
        approval = (await client.get(f"/v1/approvals/{turn['waiting_for']['ids'][0]}")).json()
    return Paused(turn["turn_id"], approval)


async def final_turn(client: httpx.AsyncClient, turn_id: str) -> dict[str, object]:
    await client.get(f"/v1/turns/{turn_id}/events")
    return dict((await client.get(f"/v1/turns/{turn_id}")).json())


async def stop_turns(client: httpx.AsyncClient, *asked: Paused) -> None:
    for each in asked:
        await client.post(f"/v1/turns/{each.turn_id}/stop")


async def behind_its_back(api: Api, statement: str, *given: object) -> None:
    async with api.services.db.transaction("local") as tx:
        await tx.execute(statement, *given)


@pytest.fixture(scope="module")
async def colleague(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with api.client("admin") as admin:
        assert (await admin.post("/v1/users", json={"name": "second", "roles": ["reviewer"]})).status_code == 201
        token = (await admin.post("/v1/users/second/tokens", json={"label": "t"})).json()["token"]
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=api.url, headers=headers, timeout=30) as client:
        yield client


async def test_an_approval_shows_the_exact_call_and_all_that_a_reviewer_needs(api: Api, reviewer: Caller) -> None:
    asked = await paused(api)
    shown = (await reviewer.get(asked.path)).json()
    wanted = {
        "id", "status", "agent", "tool", "args", "schema", "digest", "rule", "prompt_excerpt", "history", "expires_at",
        "version", "allowed_decisions", "links", "turn_id", "conversation_id", "requested_by", "risk", "effect",
        "reviewers", "quorum", "votes", "assignee", "fallback", "claimed_by", "claimed_until", "escalated_at",
        "on_timeout", "ready_at", "reject_reasons", "reviewer_role", "requested_at",
    }  # fmt: skip
    assert wanted <= shown.keys()
    assert (shown["tool"], shown["args"], shown["status"]) == ("refund", {"order": "1042", "reason": ""}, "pending")
    assert shown["prompt_excerpt"] == "Refund order 1042"
    assert shown["allowed_decisions"] == ["approve", "edit", "reject", "respond"]
    assert asked.approval["allowed_decisions"] == [], "who asked for it decides nothing"
    assert [entry["what"] for entry in shown["history"]] == ["approval.opened"]


async def test_a_message_that_joins_reaches_the_reviewer_and_an_older_revision_decides_nothing(
    api: Api, requester: Caller, admin: Caller
) -> None:
    asked = await paused(api)
    assert (asked.approval["revision"], asked.approval["messages_since"]) == (1, [])
    path = f"/v1/conversations/{asked.approval['conversation_id']}/turns"
    texts = [f"wait {number}" + "!" * 3_000 for number in range(2)]
    for text in texts:
        body = {"message": text, "on_busy": "steer"}
        assert (await requester.post(path, json=body)).json()["turn_id"] == asked.turn_id
    shown = (await admin.get(asked.path)).json()
    assert shown["revision"] == 3 and shown["version"] > int(str(asked.approval["version"]))
    assert [each["text"][:6] for each in shown["messages_since"]] == ["wait 0", "wait 1"]
    assert {len(each["text"]) for each in shown["messages_since"]} == {2_000}
    assert [entry["what"] for entry in shown["history"]][1:] == ["approval.message_joined"] * 2
    brief = (await admin.get("/v1/approvals", params={"turn": asked.turn_id, "brief": True})).json()["items"]
    assert [(each["revision"], len(each["messages_since"])) for each in brief] == [(3, 1)]
    stale = await asked.decided(admin, digest="0" * 64, revision=2)
    assert (refusal(stale), stale.json()["error"]["details"]) == ((409, "approval_revision_stale"), {"revision": 3})
    items = [{"id": asked.approval["id"], **asked.body("reject", comment="no", revision=1)}]
    several = (await admin.post("/v1/approvals/decisions", json={"items": items})).json()["items"]
    assert several[0]["error"]["code"] == "approval_revision_stale"
    assert refusal(await asked.decided(admin, digest="0" * 64, revision=3)) == (409, "digest_differs")
    assert (await asked.decided(admin, "reject", comment="no", revision=3)).status_code == 200
    assert refusal(await asked.decided(admin, revision=1)) == (409, "already_decided")
    assert (await final_turn(admin, asked.turn_id))["status"] == "completed"
    closed = (await admin.get(asked.path)).json()
    assert (closed["decision"]["seen_revision"], len(closed["messages_since"])) == (3, 2), "they stay when received"


async def test_a_message_that_waits_at_a_request_is_on_it_and_one_after_its_refusal_can_ask_again(
    harness: Harness,
) -> None:
    address = await harness.plan(("refund", {"order": "1042"}))
    await steer(harness, address, "not that one")
    await harness.open(address, "t1.0")
    assert len((await harness.approval_row(address))["joined_messages"]) == 1
    await harness.decide(approval_id(address.turn_id, "t1.0"), Decision.REJECT, comment="no")
    await steer(harness, address, "I mean it")
    for received_by, refused in (("", 1), ("m2", 0)):
        await harness.write(
            "UPDATE messages SET joins = $2 WHERE turn_id = $1 AND joins = ''", address.turn_id, received_by
        )
        async with harness.db.transaction("local") as tx:
            assert len(await refused_calls(tx, address.turn_id)) == refused


NO: list[tuple[str, str, str]] = [
    ("reject", "reason_required", "rejected"),
    ("respond", "comment_required", "responded"),
    ("withdraw", "", "withdrawn"),
]


@pytest.mark.parametrize(("verb", "needs", "status"), NO)
async def test_a_rejection_is_stored_with_its_reason_and_ends_the_turn_with_one_answer(
    api: Api, admin: Caller, verb: str, needs: str, status: str
) -> None:
    asked = await paused(api)
    if needs:
        assert refusal(await asked.decided(admin, verb, digest="0" * 64)) == (409, "digest_differs")
        assert refusal(await asked.decided(admin, verb)) == (422, needs)
    path = f"{asked.path}/withdraw" if verb == "withdraw" else f"{asked.path}/decision"
    body = {"comment": "wrong order"} if verb == "withdraw" else asked.body(verb, comment="wrong order")
    key = {"Idempotency-Key": new_id()}
    done, again = [await admin.post(path, json=body, headers=key) for _ in range(2)]
    assert (done.status_code, done.json()["status"], again.json()) == (200, status, done.json())
    turn = await final_turn(admin, asked.turn_id)
    assert turn["status"] == "completed" and "wrong order" in str(turn["answer"])
    shown = (await admin.get(asked.path)).json()
    assert len(shown["history"]) == 2 and shown["allowed_decisions"] == []
    assert refusal(await asked.decided(admin)) == (409, "already_decided")


WIDEN = "UPDATE approvals SET proposed = '{}', schema = '{\"type\": \"object\"}' WHERE id = $1"


async def test_an_edit_is_checked_by_the_types_of_its_tool_or_not_recorded(
    api: Api, reviewer: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = await paused(api)
    await behind_its_back(api, WIDEN, asked.approval["id"])
    for bad in await asyncio.gather(*(asked.decided(reviewer, "edit", args={"order": "no such"}) for _ in range(3))):
        assert refusal(bad) == (422, "args_invalid")
        (problem,) = bad.json()["error"]["details"]["fields"]
        assert problem["field"] == "order" and "[0-9]{1,9}" in problem["problem"]
    with monkeypatch.context() as brief:
        brief.setattr(workflow_client, "CHECK_TIMEOUT", timedelta(seconds=1))
        api.app.state.services = replace(api.services, routing=own_queues(Routing.spread()))  # without workers
        unchecked = await asked.decided(reviewer, "edit", args={"order": "1043"})
        api.app.state.services = api.services
    assert refusal(unchecked) == (503, "tool_check_unavailable")
    assert (await reviewer.get(asked.path)).json()["status"] == "pending"
    done = await asked.decided(reviewer, "edit", args={"order": "1043"})
    assert done.json()["decision"]["args"] == {"order": "1043"}
    assert await proposed_edits(api, asked) == {}


async def test_a_reissue_is_checked_by_the_types_of_the_new_version(
    api: Api, reviewer: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def checking_agent(*given: Any) -> PublishedAgent | None:
        agent = await published_agent(*given)
        wide = {"checks": True, "parameters": {"type": "object"}}
        cards = [card.model_copy(update=wide) for card in agent.cards] if agent else []
        return agent.model_copy(update={"cards": cards}) if agent else None

    async def ask_server(*given: Any) -> Checked:
        return Checked(fault="changed", server_changed=True)

    monkeypatch.setattr(reissue, "published_agent", checking_agent)
    asked = await paused(api)
    await behind_its_back(api, "UPDATE approvals SET tool_version = 'old' WHERE id = $1", asked.approval["id"])
    args = 'UPDATE tool_calls SET args = args || \'{"order": "%s"}\' WHERE turn_id = $1'
    await behind_its_back(api, args % "no such", asked.turn_id)
    refused = await reviewer.post(f"{asked.path}/reissue")
    assert refusal(refused) == (422, "args_invalid")
    assert [each["field"] for each in refused.json()["error"]["details"]["fields"]] == ["order"]
    await behind_its_back(api, args % "1043", asked.turn_id)
    with monkeypatch.context() as drifted:
        drifted.setattr(approvals, "run_edit_check", ask_server)
        assert refusal(await reviewer.post(f"{asked.path}/reissue")) == (409, "cannot_reissue")
    assert (await reviewer.get(asked.path)).json()["status"] == "outdated" and await proposed_edits(api, asked) == {}
    reissued = await reviewer.post(f"{asked.path}/reissue")
    assert (reissued.status_code, reissued.json()["args"]["order"]) == (201, "1043"), reissued.text
    await stop_turns(reviewer, asked)


async def proposed_edits(api: Api, asked: Paused) -> object:
    async with api.services.db.transaction("local") as tx:
        return await tx.fetchval("SELECT proposed FROM approvals WHERE id = $1", asked.approval["id"])


@pytest.mark.parametrize("moment", ["tool_previews.propose_edit", "run_edit_check"])
async def test_an_edit_of_a_request_that_is_decided_meanwhile_is_refused_at_once(
    api: Api, reviewer: Caller, colleague: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    asked = await paused(api)
    await behind_its_back(api, WIDEN, asked.approval["id"])
    work = operator.attrgetter(moment)(approvals)

    async def decided_first(*given: Any) -> Any:
        assert (await asked.decided(colleague, "reject", comment="no")).status_code == 200
        return await work(*given)

    monkeypatch.setattr(f"{approvals.__name__}.{moment}", decided_first)
    async with asyncio.timeout(5):
        late = await asked.decided(reviewer, "edit", args={"order": "1043"})
    assert refusal(late) == (409, "already_decided") and await proposed_edits(api, asked) == {}
    assert (await final_turn(reviewer, asked.turn_id))["status"] == "completed"


async def test_the_queue_is_filtered_and_paged_and_a_requester_sees_only_their_own(api: Api) -> None:
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
        for narrow in ({"tool": "nothing"}, {"status": "pending", "expiring": "60"}):
            assert (await reviewer.get("/v1/approvals", params=narrow)).json()["items"] == []
        async with api.client("admin") as admin:
            mine = [item["id"] for item in (await admin.get("/v1/approvals", params={"mine": True})).json()["items"]]
        assert foreign.approval["id"] not in mine and set(ids) <= set(mine)
        assert (await requester.get("/v1/approvals", params={"mine": True})).json()["items"] == []
        await stop_turns(reviewer, *asked, foreign)


async def test_settling_an_effect_wakes_the_readers_of_its_conversation(api: Api, reviewer: Caller) -> None:
    """Of a turn that was stopped, so that nothing else wakes them."""
    asked = await paused(api)
    services, conversation_id = api.services, str(asked.approval["conversation_id"])
    await stop_turns(reviewer, asked)
    assert (await final_turn(reviewer, asked.turn_id))["status"] == "stopped"
    async with services.db.transaction("local") as tx:
        lost = "UPDATE tool_calls SET state = 'outcome_unknown' WHERE turn_id = $1 RETURNING key"
        key = await tx.fetchval(lost, asked.turn_id)
    async with services.valkey.client.pubsub(ignore_subscribe_messages=True) as heard:
        await heard.subscribe(channel(conversation_id))
        while await heard.get_message(timeout=0.5) is not None:
            pass  # what the end still had to say
        body = {"outcome": "happened", "comment": "saw it in the ledger"}
        assert (await reviewer.post(f"/v1/effects/{key}/settle", json=body)).status_code == 200
        message = await heard.get_message(timeout=20)
    assert message is not None and message["data"] == WOKEN_BY_EVENTS


async def test_a_preview_is_made_by_a_worker_kept_with_its_time_and_blocks_no_decision(api: Api) -> None:
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
        decided = await asked.decided(reviewer, "reject", comment="no")
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
        await stop_turns(requester, note)
        for each in (asked, note):
            await final_turn(requester, each.turn_id)


async def test_a_claim_shows_its_holder_and_blocks_other_reviewers(api: Api, colleague: httpx.AsyncClient) -> None:
    asked = await paused(api)
    async with api.client("reviewer") as client, api.client("admin") as admin:
        claimed = await client.post(f"{asked.path}/claim")
        assert (claimed.status_code, claimed.json()["claimed_by"]) == (200, "reviewer")
        assert claimed.json()["claimed_until"] > datetime.now(UTC).isoformat()
        assert (await colleague.get(asked.path)).json()["allowed_decisions"] == []
        assert (await admin.post(f"{asked.path}/release", json={})).json()["claimed_by"] is None
        assert (await colleague.get(asked.path)).json()["allowed_decisions"] != []
        await stop_turns(client, asked)


async def test_an_assigned_request_shows_on_the_reviewers_list(api: Api, colleague: httpx.AsyncClient) -> None:
    asked = await paused(api)
    async with api.client("reviewer") as client, api.client("admin") as admin:
        given = await client.post(f"{asked.path}/reassign", json={"to": "second"})
        assert (given.status_code, given.json()["assignee"]) == (200, "second")
        listed = (await client.get("/v1/approvals", params={"assignee": "second"})).json()["items"]
        assert [item["id"] for item in listed] == [asked.approval["id"]]
        up = (await colleague.post(f"{asked.path}/escalate", json={"comment": "above me"})).json()
        assert (up["reviewer_role"], up["assignee"]) == ("admin", None)
        assert [each["what"].split(".")[1] for each in up["history"]] == ["opened", "reassigned", "escalated"]
        assert refusal(await admin.post(f"{asked.path}/escalate")) == (409, "already_escalated")
        await stop_turns(admin, asked)


def item(asked: Paused, decision: str = "reject", **given: object) -> dict[str, object]:
    return {"id": asked.approval["id"], **asked.body(decision, **given)}


async def many(client: httpx.AsyncClient, *items: dict[str, object]) -> list[Any]:
    answers: list[Any] = (await client.post("/v1/approvals/decisions", json={"items": items})).json()["items"]
    return answers


async def test_many_are_rejected_in_one_request_with_a_result_for_each(api: Api, admin: Caller) -> None:
    asked = [await paused(api) for _ in range(3)]
    own = await paused(api, by="admin")
    items = [item(each, comment="not today") for each in (*asked[:2], own)] + [item(asked[2])]
    items += [{"id": id_, "digest": "x", "decision": "reject", "comment": "c"} for id_ in (new_id(), "nothing")]
    key = {"Idempotency-Key": new_id()}
    path = "/v1/approvals/decisions"
    done, again = [await admin.post(path, json={"items": items}, headers=key) for _ in range(2)]
    answers = done.json()["items"]
    assert [each.get("status") or each["error"]["code"] for each in answers] == [
        *["rejected"] * 2, "own_request", "reason_required", *["approval_not_found"] * 2,
    ]  # fmt: skip
    assert [each["id"] for each in answers] == [each["id"] for each in items]
    assert again.json() == done.json()
    assert refusal(await admin.post(path, json={"items": items[:1]}, headers=key)) == (422, "idempotency_key_reused")
    for each in asked[:2]:
        assert (await final_turn(admin, each.turn_id))["status"] == "completed"
    await stop_turns(admin, asked[2], own)


async def test_only_calls_of_low_risk_and_of_one_tool_are_approved_together(api: Api, reviewer: Caller) -> None:
    low, high = [await paused(api) for _ in range(2)], await paused(api)
    ids = [each.approval["id"] for each in low]
    await behind_its_back(api, "UPDATE approvals SET risk = 'low' WHERE id = ANY($1)", ids)
    refused = await many(reviewer, *(item(each, "approve") for each in (*low, high)))
    assert [(each["error"]["status"], each["error"]["code"]) for each in refused] == [(422, "not_in_bulk")] * 3
    assert (await many(reviewer, item(high, "edit")))[0]["error"]["code"] == "not_in_bulk"
    together = [item(each, "approve") for each in low] + [item(high, reason_code="too_much")]
    assert [each["status"] for each in await many(reviewer, *together)] == ["approved", "approved", "rejected"]
    for each in (*low, high):
        assert (await final_turn(reviewer, each.turn_id))["status"] == "completed"
    assert (await reviewer.get(low[0].path)).json()["decision"]["channel"] == "bulk"


def in_days(days: float) -> str:
    return (datetime.now(UTC) + timedelta(days=days)).isoformat()


async def test_a_delegate_decides_until_a_date_or_until_it_is_ended(api: Api, colleague: httpx.AsyncClient) -> None:
    asked = await paused(api)
    await behind_its_back(api, "UPDATE approvals SET reviewers = ARRAY['reviewer'] WHERE id = $1", asked.approval["id"])
    lend: Any = {"to": "trainee", "until": in_days(3)}
    async with api.client("reviewer") as client, api.client("admin") as admin, api.client(None) as trainee:
        await admin.post("/v1/users", json={"name": "trainee", "roles": ["requester", "reviewer"]})
        token = (await admin.post("/v1/users/trainee/tokens", json={})).json()["token"]
        trainee.headers["Authorization"] = f"Bearer {token}"
        made = await client.post("/v1/delegations", json=lend)
        assert (made.status_code, made.json()["to"], made.json()["by"]) == (201, "trainee", "reviewer")
        place = f"/v1/delegations/{made.json()['id']}"
        assert [each["id"] for each in (await client.get("/v1/delegations")).json()["items"]] == [made.json()["id"]]
        assert (await colleague.get("/v1/delegations")).json()["items"] == []
        assert refusal(await colleague.delete(place)) == (404, "delegation_not_found")
        # Without the role the place is worth nothing, and shows nothing.
        await admin.post("/v1/users/trainee/roles", json={"roles": ["requester"]})
        assert (await trainee.get(asked.path)).status_code == 404
        for mine in (True, False):
            assert (await trainee.get("/v1/approvals", params={"mine": mine})).json()["items"] == []
        assert refusal(await asked.decided(trainee)) == (404, "approval_not_found")
        await admin.post("/v1/users/trainee/roles", json={"roles": ["requester", "reviewer"]})
        mine = (await trainee.get("/v1/approvals", params={"mine": True})).json()["items"]
        assert asked.approval["id"] in [each["id"] for each in mine]
        done = (await asked.decided(trainee)).json()
        assert (done["decided_by"], done["decision"]["for"], done["votes"][0]["for"]) == ("trainee", *["reviewer"] * 2)
        assert [(await client.delete(place)).status_code for _ in range(2)] == [204, 404]
        await final_turn(client, asked.turn_id)


async def test_an_admin_lists_all_delegations_and_ends_one(api: Api, colleague: httpx.AsyncClient) -> None:
    until = in_days(3)
    async with api.client("reviewer") as client, api.client("admin") as admin:
        made = [
            (await giver.post("/v1/delegations", json={"to": to, "until": until})).json()
            for giver, to in ((client, "second"), (colleague, "reviewer"))
        ]
        assert refusal(await client.get("/v1/delegations", params={"all": True})) == (403, "role_required")
        assert (await admin.get("/v1/delegations")).json()["items"] == []
        page = (await admin.get("/v1/delegations", params={"all": True, "limit": 1})).json()
        assert [(each["by"], each["to"]) for each in page["items"]] == [("second", "reviewer")]
        rest = (await admin.get("/v1/delegations", params={"all": True, "cursor": page["next"]})).json()
        assert [(each["by"], each["to"]) for each in rest["items"]] == [("reviewer", "second")]
        assert rest["next"] is None
        for each in made:
            assert (await admin.delete(f"/v1/delegations/{each['id']}")).status_code == 204
            assert refusal(await admin.delete(f"/v1/delegations/{each['id']}")) == (404, "delegation_not_found")
        assert (await client.get("/v1/delegations")).json()["items"] == []


async def test_an_impossible_delegation_is_refused(reviewer: Caller) -> None:
    refused: list[tuple[dict[str, Any], int, str]] = [
        ({"to": "nobody", "until": in_days(1)}, 404, "user_not_found"),
        ({"to": "reviewer", "until": in_days(1)}, 422, "to_yourself"),
        *(({"to": "admin", "until": in_days(days)}, 422, "until_invalid") for days in (-1, 90.1)),
        *(
            ({"to": "admin", "until": at}, 422, "until_invalid")
            for at in ("9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00")
        ),
        *(({"to": "admin", "until": at}, 422, "invalid_input") for at in ("2030-01-01T00:00:00", "tomorrow")),
        ({"to": "", "until": in_days(1)}, 422, "invalid_input"),
        ({"to": "admin"}, 422, "invalid_input"),
        ({"to": "admin", "until": in_days(1), "from": "second"}, 422, "invalid_input"),
    ]
    for body, *expected in refused:
        assert refusal(await reviewer.post("/v1/delegations", json=body)) == tuple(expected), body
    assert (await reviewer.get("/v1/delegations")).json()["items"] == []


BAD: dict[str, list[Any]] = {
    "claim": [*({"seconds": wrong} for wrong in (0, 3601, "60", 1.5, True)), {"minutes": 1}, []],
    "release": [{"why": "x"}],
    "withdraw": [{"comment": 7}, {"comment": "x" * 4_001}],
    "escalate": [{"to": "admin"}],
    "reassign": [{}, None, *({"to": wrong} for wrong in ("", None, "x" * 64))],
}
ONE = {"id": "x", "digest": "d", "decision": "reject"}
BAD_ITEMS: list[Any] = [[], {}, [{}], [ONE] * 2, [{**ONE, "id": str(n)} for n in range(101)]]
BAD_ONE: list[dict[str, Any]] = [{"decision": "shrug"}, {"args": {}}, {"digest": "d" * 129}]
BAD_MANY = [{}, *({"items": wrong} for wrong in BAD_ITEMS), *({"items": [{**ONE, **wrong}]} for wrong in BAD_ONE)]


async def test_invalid_bodies_are_refused_and_change_nothing(api: Api, reviewer: Caller) -> None:
    asked = await paused(api)
    sent = [(f"{asked.path}/{verb}", body) for verb, bodies in BAD.items() for body in bodies]
    sent += [("/v1/approvals/decisions", body) for body in BAD_MANY]
    for path, body in sent:
        assert refusal(await reviewer.post(path, json=body)) == (422, "invalid_input"), (path, body)
    shown = (await reviewer.get(asked.path)).json()
    assert (shown["status"], shown["version"], len(shown["history"])) == ("pending", 1, 1)
    await behind_its_back(api, "UPDATE approvals SET expires_at = now() WHERE id = $1", asked.approval["id"])
    assert (await reviewer.get(asked.path)).json()["status"] == "expired"


async def test_pending_requests_are_counted_by_age_and_reviewer(api: Api, requester: Caller, reviewer: Caller) -> None:
    asked = [await paused(api) for _ in range(3)]
    for each, age in zip(asked, ("0 hours", "2 hours", "5 days"), strict=True):
        set_back = f"requested_at = now() - interval '{age}', agent_id = 'ages', fallback_at = now()"
        statement = f"UPDATE approvals SET {set_back}, fallback_reviewer = 'second' WHERE id = $1"
        await behind_its_back(api, statement, each.approval["id"])
    groups = (await reviewer.get("/v1/approvals/ageing")).json()["items"]
    (mine,) = [group for group in groups if group["agent"] == "ages"]
    assert (mine["waiting"], mine["role"], mine["assignee"]) == (3, "reviewer", None)
    assert mine["buckets"] == {"1h": 1, "1d": 1, "3d": 0, "older": 1}
    assert mine["fallback"]["reviewer"] == "second"
    assert mine["oldest_at"] < mine["next_expiry_at"]
    own = (await requester.get("/v1/approvals/ageing")).json()["items"]
    assert [group["waiting"] for group in own if group["agent"] == "ages"] == [3]
    await stop_turns(reviewer, *asked)


async def test_effects_are_paged_and_each_is_shown_with_its_whole_record(api: Api, reviewer: Caller) -> None:
    turn_id = (await paused(api, "Refund orders 1042 and 1043")).turn_id
    keys = [item["key"] for item in await pages(reviewer, "/v1/effects", 1) if item["turn_id"] == turn_id]
    assert len(keys) == len(set(keys)) == 2, "no call of a round is lost between pages"
    approvals = (await reviewer.get("/v1/approvals", params={"turn": turn_id})).json()["items"]
    for each in approvals:
        await Paused(turn_id, each).decided(reviewer, comment="fine")
    assert (await final_turn(reviewer, turn_id))["status"] == "completed"
    async with api.client() as requester:
        shown = (await requester.get(f"/v1/effects/{keys[0]}")).json()
    assert (shown["tool"], shown["attempts"], shown["may_be_settled_as"]) == ("refund", 1, [])
    assert shown["approval"]["id"] in [each["id"] for each in approvals]
    assert shown["approval"]["decided_by"] == "reviewer"
    kinds = [event["kind"] for event in shown["events"]]
    assert kinds[:2] == ["hitl.rule_fire", "tool.awaiting_approval"] and "tool.executing" in kinds


async def test_a_reviewer_who_decides_too_fast_is_told_when_to_continue(api: Api, colleague: httpx.AsyncClient) -> None:
    asked = await paused(api)
    votes = (
        "INSERT INTO approval_votes (tenant_id, approval_id, user_id, seat_id, role, decision, digest, record, "
        "voided_at) SELECT 'local', $1, id, id, 'reviewer', 'approve', 'd', '{}', now() "
        "FROM users, generate_series(1, 60) WHERE name = 'second'"
    )
    await behind_its_back(api, votes, asked.approval["id"])
    fast = await asked.decided(colleague)
    assert refusal(fast) == (429, "too_many_decisions")
    assert 1 <= int(fast.headers["Retry-After"]) <= 60
    assert (await many(colleague, item(asked, comment="no")))[0]["error"]["code"] == "too_many_decisions"
    async with api.client("reviewer") as client:
        assert (await client.get(asked.path)).json()["status"] == "pending"
        await stop_turns(client, asked)
