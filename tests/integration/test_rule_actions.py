"""A tenant's own actions for rules: stricter only, by an administrator, on the record, for turns that begin later."""

from typing import Any

import pytest

from policy.platform_rules import RULE_FORCE_CLARIFY
from store.database import Database
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
    assert [(row["data"]["before"], row["data"]["do"]) for row in rows] == [
        ("require_hitl", "abort"),
        ("abort", "abort"),
        ("abort", "require_hitl"),
    ]


@pytest.mark.parametrize(
    ("who", "body", "status", "told"),
    [
        ("requester", {"rule": RULE_FORCE_CLARIFY, "do": "abort"}, 403, "role_required"),
        ("reviewer", {"rule": RULE_FORCE_CLARIFY, "do": "abort"}, 403, "role_required"),
        ("admin", {"rule": "platform:nobodys", "do": "abort"}, 404, "rule_not_found"),
        ("admin", {"rule": RULE_FORCE_CLARIFY, "do": "allow"}, 422, "rule_looser"),
        ("admin", {"rule": RULE_FORCE_CLARIFY}, 422, "invalid_input"),
    ],
)
async def test_what_may_not_be_set_is_refused(api: Api, who: str, body: dict[str, str], status: int, told: str) -> None:
    async with api.client(who) as client:
        answer = await client.put("/v1/rules", json=body)
    assert (answer.status_code, code(answer)) == (status, told)
