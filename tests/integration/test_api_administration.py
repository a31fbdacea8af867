"""What administrators and reviewers see and set: the audit, budgets, limits, webhooks, chats, actions of rules."""

import json
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from perdure.core.agents.rules import RULE_FORCE_CLARIFY
from perdure.core.audit import Keyring, signed_head
from perdure.store import audit
from perdure.store.audit import head_of
from perdure.store.database import Database, new_id
from tests.conftest import KEYRING
from tests.integration.audit_tampering import exported_head, write_audit_rows
from tests.integration.conftest import Api, Caller, in_transaction
from tests.integration.test_api_access import having
from tests.integration.test_api_approvals import final_turn, item, paused
from tests.integration.test_api_turns import conversation, refusal

PATCH, PROPOSE = "memory_patch", "memory_propose_promotion"


async def test_an_audit_verification_returns_its_position_and_faults(api: Api, reviewer: Caller) -> None:
    await write_audit_rows(api.services.db, "local", 70)
    report = (await reviewer.get("/v1/audit/verify")).json()
    head = await in_transaction(api.services.db, head_of)
    assert report["ok"] and report["faults"] == [] and report["rows"] == head.seq >= 70
    assert report["head"] == {"seq": head.seq, "hash": head.hash}
    ahead = signed_head(KEYRING, "local", head.seq + 5, "0" * 64, "t")
    answer = await reviewer.post("/v1/audit/verify", json={"heads": [ahead.model_dump()]})
    assert answer.status_code == 200
    assert not answer.json()["ok"]
    (fault,) = answer.json()["faults"]
    assert (fault["seq"], fault["kind"], fault["audit_id"]) == (head.seq + 5, "tail_cut", None)
    audit.append_heads(api.services.audit_heads, [await exported_head(api.services.db, "local")])
    report = (await reviewer.get("/v1/audit/verify")).json()
    assert (report["ok"], report["heads_checked"]) == (True, 1), "the deployment's own file is looked at"
    lost = signed_head(Keyring.of("lost " * 8), "local", 1, "0" * 64, "t")
    report = (await reviewer.post("/v1/audit/verify", json={"heads": [lost.model_dump()]})).json()
    assert (report["heads_found"], report["heads_checked"], report["keys_unknown"]) == (2, 1, {lost.key: 1})
    bodies: list[Any] = [{}, {"heads": [{}]}, {"heads": [{"tenant": "local", "seq": -1}]}, {"heads": [], "more": 1}]
    for body in bodies:
        assert (await reviewer.post("/v1/audit/verify", json=body)).status_code == 422


async def test_the_audit_export_is_one_object_a_line_and_continues_at_its_cursor(api: Api) -> None:
    await write_audit_rows(api.services.db, "local", 500)
    async with api.client("admin") as client:
        answer = await client.get("/v1/audit/export")
        assert answer.headers["content-type"].startswith("application/jsonl")
        rows = [json.loads(line) for line in answer.text.splitlines()]
        assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1)) and len(rows) >= 500
        rest = await client.get("/v1/audit/export", params={"after": len(rows) - 10, "limit": 4})
        assert [json.loads(line)["seq"] for line in rest.text.splitlines()] == list(range(len(rows) - 9, len(rows) - 5))
        for turn in ("no-turn", new_id()):
            assert refusal(await client.get("/v1/audit/export", params={"turn": turn})) == (404, "turn_not_found")
        for bad in ({"after": -1}, {"limit": 0}, {"after": "x"}):
            assert (await client.get("/v1/audit/export", params=bad)).status_code == 422
    assert set(rows[-1]) >= {"at", "kind", "subject", "actor", "turn_id", "data", "salt", "body_digest", "hash", "prev"}


async def test_an_administrator_sets_and_sees_the_days_budget(admin: Caller) -> None:
    before = (await admin.get("/v1/budgets")).json()
    assert before["tenant"] is None and before["resets_at"].startswith(before["day"][:4])
    given = {"max_tokens": 5_000_000, "max_cost_usd": 12.5}
    put = await admin.put("/v1/budgets", json=given)
    seen = (await admin.get("/v1/budgets")).json()
    await admin.put("/v1/budgets", json={"max_tokens": None, "max_cost_usd": None})
    assert put.status_code == 200 and put.json() == seen
    assert {name: seen["tenant"][name] for name in given} == given
    assert (seen["tenant"]["reserved_tokens"], seen["tenant"]["assumed_tokens"]) == (0, 0)


async def test_a_reviewer_raises_the_limit_of_a_turn_that_waits_for_it(api: Api, reviewer: Caller) -> None:
    body = {"message": "What is the status of order 1001?", "limits": {"max_tokens": 5, "on_spent": "ask"}}
    async with api.client() as client:
        path = f"/v1/conversations/{await conversation(client)}/turns?wait=20"
        turn = (await client.post(path, json=body)).json()
    assert (turn["status"], turn["waiting_for"]["kind"]) == ("awaiting_approval", "limit")
    route = f"/v1/turns/{turn['turn_id']}/limits"
    shown = (await reviewer.get(f"/v1/approvals/{turn['waiting_for']['ids'][0]}")).json()
    assert shown["kind"] == "limit" and shown["allowed_decisions"] == ["reject"]
    assert shown["args"]["max_tokens"] == 5 and shown["args"]["tokens_used"] >= 5
    approve = {"decision": "approve", "digest": shown["digest"]}
    refused = await reviewer.post(f"/v1/approvals/{shown['id']}/decision", json=approve)
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "raise_the_limit")
    assert (await reviewer.post(route, json={"max_tokens": 4})).status_code == 422
    key = {"Idempotency-Key": "raise-it"}
    raised = await reviewer.post(route, json={"max_tokens": 5_000}, headers=key)
    again = await reviewer.post(route, json={"max_tokens": 5_000}, headers=key)
    assert raised.status_code == 200 and again.json() == raised.json()
    assert raised.json()["limits"]["max_tokens"] == 5_000
    done = await final_turn(reviewer, turn["turn_id"])
    history = (await reviewer.get(f"/v1/approvals/{shown['id']}")).json()["history"]
    assert done["status"] == "completed" and done["answer"]
    assert [entry["what"] for entry in history] == ["approval.opened", "turn.limits_raised"]


def allowed(api: Api) -> AbstractAsyncContextManager[None]:
    return having(api, webhook_hosts=("hooks.example.org",))


async def test_an_administrator_creates_lists_and_deletes_webhooks(api: Api) -> None:
    async with allowed(api), api.client("admin") as admin:
        made = await admin.post("/v1/webhooks", json={"url": "https://hooks.example.org/x", "with_args": True})
        assert (made.status_code, len(made.json()["secret"])) == (201, 64)
        (shown,) = (await admin.get("/v1/webhooks")).json()["items"]
        assert (shown["url"], shown["made_by"], shown["waiting"]) == ("https://hooks.example.org/x", "admin", 0)
        assert "secret" not in shown, "it is shown once"
        path = f"/v1/webhooks/{shown['id']}"
        assert (await admin.delete(path)).json() == {"ended": True}
        assert (await admin.delete(path)).status_code == 404
        assert (await admin.get("/v1/webhooks")).json()["items"] == []
    kept = str([dict(row) for row in await api.rows("SELECT * FROM webhooks")])
    assert made.json()["secret"] not in kept


async def test_an_address_that_the_operator_does_not_allow_is_422(api: Api, admin: Caller) -> None:
    answer = await admin.post("/v1/webhooks", json={"url": "https://hooks.example.org/x"})
    assert refusal(answer) == (422, "address_refused"), "there are none without the operator's word"
    other = ("http://hooks.example.org/", "https://169.254.169.254/", "https://other.test/", "x", "", "https://a b")
    async with allowed(api):
        for url in other:
            assert (await admin.post("/v1/webhooks", json={"url": url})).status_code == 422, url


async def chat_token(api: Api, name: str) -> dict[str, str]:
    async with api.client("admin") as admin:
        minted = await admin.post(f"/v1/users/{name}/tokens", json={"label": "chat"})
    return {"Authorization": f"Bearer {minted.json()['token']}"}


async def test_a_chat_token_decides_low_risk_requests_as_its_user(api: Api, reviewer: Caller, visitor: Caller) -> None:
    head = await chat_token(api, "reviewer")
    asked = await paused(api)
    refused = await visitor.post(f"{asked.path}/decision", json=asked.body(), headers=head)
    assert refusal(refused) == (403, "not_from_chat")
    await api.write("UPDATE approvals SET risk = 'low' WHERE id = $1", asked.approval["id"])
    own = await visitor.post(f"{asked.path}/decision", json=asked.body(), headers=await chat_token(api, "requester"))
    assert own.status_code == 403, "no user decides on the own request there either"
    done = await visitor.post(f"{asked.path}/decision", json=asked.body(), headers=head)
    assert (done.status_code, done.json()["decided_by"]) == (200, "reviewer")
    assert done.json()["decision"]["channel"] == "chat"
    assert refusal(await reviewer.post(f"{asked.path}/decision", json=asked.body())) == (409, "already_decided")


async def test_a_chat_token_is_refused_on_every_other_route(api: Api, visitor: Caller) -> None:
    head = await chat_token(api, "admin")
    asked = await paused(api)
    assert (await visitor.get(asked.path, headers=head)).status_code == 200
    for method, path, body in (
        ("GET", "/v1/approvals", None), ("POST", "/v1/approvals/decisions", {"items": [item(asked, "approve")]}),
        ("POST", f"{asked.path}/claim", {}), ("POST", f"{asked.path}/reassign", {"to": "admin"}),
        ("GET", "/v1/turns", None), ("POST", "/v1/conversations", {"agent": "refunds"}),
        ("POST", "/v1/users", {"name": "eve", "roles": ["admin"]}),
        ("POST", "/v1/auth/password", {"password": "taken over"}),
    ):  # fmt: skip
        assert refusal(await visitor.request(method, path, json=body, headers=head)) == (403, "chat_token"), path
    token = head["Authorization"].removeprefix("Bearer ")
    assert refusal(await visitor.post("/v1/auth/login", json={"token": token})) == (403, "chat_token")


def action(answer: dict[str, Any]) -> tuple[str, bool]:
    """What the platform's rule does, and whether the tenant made it so."""
    (rule,) = [each for each in answer["items"] if each["id"] == RULE_FORCE_CLARIFY]
    return rule["do"], rule["overridden"]


async def test_an_administrator_makes_a_rule_stricter_and_reverts_it(api: Api, db: Database) -> None:
    async with api.client("admin") as admin, api.client("requester") as requester:
        assert action((await requester.get("/v1/rules")).json()) == ("require_hitl", False)
        for do, own in (("abort", True), ("abort", True), ("require_hitl", False)):
            answer = await admin.put("/v1/rules", json={"rule": RULE_FORCE_CLARIFY, "do": do})
            assert (answer.status_code, action(answer.json())) == (200, (do, own))
            assert action((await requester.get("/v1/rules")).json()) == (do, own)
    async with db.transaction("local") as tx:
        rows = await tx.fetch("SELECT data FROM audit_trail WHERE kind = 'rule.action_set' ORDER BY id")
    assert [row["data"]["before"] for row in rows] == ["require_hitl", "abort", "abort"]
    assert [row["data"]["do"] for row in rows] == ["abort", "abort", "require_hitl"]


@pytest.mark.parametrize(("path", "body", "told"), [
    ("rules", {"rule": RULE_FORCE_CLARIFY, "do": "allow"}, "rule_looser"),
    ("rules/tools", {"tool": "refund", "approval": False}, "approval_not_waivable"),
    ("rules/tools", {"tool": "memory_remember", "approval": True}, "approval_not_waivable"),
    ("rules/tools", {"tool": "Memory_Patch", "approval": False}, "approval_not_waivable"),
])  # fmt: skip
async def test_a_looser_rule_or_exemption_is_refused(admin: Caller, path: str, body: dict[str, Any], told: str) -> None:
    assert refusal(await admin.put(f"/v1/{path}", json=body)) == (422, told)
    assert all(each["approval"] for each in (await admin.get("/v1/rules/tools")).json()["items"])


async def test_an_admin_exempts_a_memory_tool_from_approval_and_ends_the_exemption(api: Api, db: Database) -> None:
    async with api.client("admin") as admin, api.client("requester") as requester:
        for approval in (False, False, True):
            answer = await admin.put("/v1/rules/tools", json={"tool": PATCH, "approval": approval})
            told = [{"tool": PATCH, "approval": approval}, {"tool": PROPOSE, "approval": True}]
            assert (answer.status_code, answer.json()["items"]) == (200, told)
            assert (await requester.get("/v1/rules/tools")).json()["items"] == told
            tools = (await requester.get("/v1/agents/ops/tools")).json()["items"]
            (shown,) = [each for each in tools if each["name"] == PATCH]
            assert (shown["needs_approval"], "tenant" in shown["free_because"]) == (approval, not approval)
            assert bool(shown["reasons"]) is approval
    async with db.transaction("local") as tx:
        rows = await tx.fetch(
            "SELECT subject, data, actor_name FROM (SELECT t.*, u.name AS actor_name FROM audit_trail t "
            "JOIN users u ON u.id = t.actor) AS told WHERE kind = 'approval.waiver_set' ORDER BY id"
        )
    assert {(row["subject"], row["actor_name"]) for row in rows} == {(PATCH, "admin")}
    changes = [(row["data"]["before"], row["data"]["approval"]) for row in rows]
    assert changes == [(True, False), (False, False), (False, True)]
