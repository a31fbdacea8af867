"""A tenant's own actions for rules: stricter only, by an administrator, on the record, for turns that begin later; and
the approvals that it may waive."""

from typing import Any

import pytest

from perdure.core.agents.rule_matching import RULE_FORCE_CLARIFY
from perdure.store.database import Database
from tests.integration.conftest import Api
from tests.integration.test_api_turns import code


def action(answer: dict[str, Any]) -> tuple[str, bool]:
    """What the platform's rule does, and whether the tenant made it so."""
    (rule,) = [each for each in answer["items"] if each["id"] == RULE_FORCE_CLARIFY]
    return rule["do"], rule["overridden"]


async def test_an_administrator_makes_a_rule_stricter_and_takes_it_back(api: Api, db: Database) -> None:
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


@pytest.mark.parametrize(
    ("who", "path", "body", "status", "told"),
    [
        ("requester", "rules", {"rule": RULE_FORCE_CLARIFY, "do": "abort"}, 403, "role_required"),
        ("reviewer", "rules", {"rule": RULE_FORCE_CLARIFY, "do": "abort"}, 403, "role_required"),
        ("admin", "rules", {"rule": "platform:nobodys", "do": "abort"}, 404, "rule_not_found"),
        ("admin", "rules", {"rule": RULE_FORCE_CLARIFY, "do": "allow"}, 422, "rule_looser"),
        ("requester", "rules/tools", {"tool": "memory_patch", "approval": False}, 403, "role_required"),
        ("reviewer", "rules/tools", {"tool": "memory_patch", "approval": False}, 403, "role_required"),
        ("admin", "rules/tools", {"tool": "refund", "approval": False}, 422, "approval_not_waivable"),
        ("admin", "rules/tools", {"tool": "memory_remember", "approval": True}, 422, "approval_not_waivable"),
        ("admin", "rules/tools", {"tool": "Memory_Patch", "approval": False}, 422, "approval_not_waivable"),
        ("admin", "rules/tools", {"tool": ["memory_patch"], "approval": False}, 422, "invalid_input"),
    ],
)
async def test_what_nobody_may_set_is_refused_and_stays(
    api: Api, who: str, path: str, body: dict[str, Any], status: int, told: str
) -> None:
    async with api.client(who) as client:
        answer = await client.put(f"/v1/{path}", json=body)
        assert (answer.status_code, code(answer)) == (status, told)
        assert all(each["approval"] for each in (await client.get("/v1/rules/tools")).json()["items"])


PATCH, PROPOSE = "memory_patch", "memory_propose_promotion"


async def test_an_administrator_waives_the_approval_of_a_memory_tool_and_takes_it_back(api: Api, db: Database) -> None:
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
