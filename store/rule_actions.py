"""The actions that a tenant gives to rules, stricter than their own (S0-70); a turn takes them as it begins."""

from collections.abc import Iterable

from contracts.errors import CallerError
from contracts.skills import Rule
from policy.rules import override_fault
from store import audit
from store.database import Connection

ACTIONS = "(SELECT rule_actions FROM tenants WHERE tenant_id = current_setting('perdure.tenant'))"
"""A subselect: action by rule id."""


async def actions(tx: Connection) -> dict[str, str]:
    """The tenant's own actions, by rule id."""
    found: dict[str, str] = await tx.fetchval(f"SELECT {ACTIONS}")
    return found


async def set_action(tx: Connection, rules: Iterable[Rule], rule_id: str, do: str, user_id: str) -> None:
    """Give a rule this action from the next turn on; its own action takes the tenant's back.

    Raises: CallerError 404 `rule_not_found`, 422 `rule_looser`.
    """
    rule = next((each for each in rules if each.id == rule_id), None)
    if rule is None:
        raise CallerError("rule_not_found", "there is no such rule; see GET /v1/rules", status=404)
    fault = override_fault(rule, do)
    if fault is not None:
        raise CallerError("rule_looser", fault, {"rule": rule_id}, status=422)
    before = await tx.fetchval(f"SELECT {ACTIONS}->>$1", rule_id)
    await tx.execute(
        "UPDATE tenants SET rule_actions = CASE WHEN $3 THEN rule_actions - $1::text "
        "ELSE rule_actions || jsonb_build_object($1::text, $2::text) END "
        "WHERE tenant_id = current_setting('perdure.tenant')",
        rule_id,
        do,
        do == rule.do,
    )
    told = {"do": do, "before": before or rule.do}
    await audit.record(tx, "rule.action_set", rule_id, {**told}, actor=user_id, turn_id=None)
