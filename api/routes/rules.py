"""Rules: the platform's and those of the agents, as this tenant has them; an administrator makes them stricter.

Beside them the few tools that a tenant may let run without the approval that they need (policy/waivers.py).
"""

from fastapi import APIRouter
from pydantic import Field

from api.auth import Open, Reader
from api.bodies import Body
from contracts.skills import Rule
from policy.plans import rules_of
from policy.platform_rules import PLATFORM_RULES
from policy.rules import with_overrides
from policy.waivers import WAIVABLE
from store import content, rule_actions, waivers
from store.database import Connection

router = APIRouter(prefix="/v1/rules", tags=["rules"])


class RuleActionBody(Body):
    """PUT /v1/rules."""

    rule: str = Field(min_length=1, max_length=200)
    do: str = Field(min_length=1, max_length=40)


class WaiverBody(Body):
    """PUT /v1/rules/tools."""

    tool: str = Field(min_length=1, max_length=200)
    approval: bool = Field(strict=True)
    """Whether a person is asked."""


@router.get("")
async def listed(services: Open, who: Reader) -> dict[str, object]:
    """Every rule that can hold for a turn of this tenant."""
    async with services.db.transaction(who.tenant_id) as tx:
        return await _shown(tx)


@router.put("")
async def put(services: Open, who: Reader, body: RuleActionBody) -> dict[str, object]:
    """Make a rule stricter from the next turn on, or give it its own action back."""
    who.need("admin")
    async with services.db.transaction(who.tenant_id) as tx:
        await rule_actions.set_action(tx, await _rules(tx), body.rule, body.do, who.user_id)
        return await _shown(tx)


@router.get("/tools")
async def waivable(services: Open, who: Reader) -> dict[str, object]:
    """The tools whose approval this tenant may waive, and whether it is asked for."""
    async with services.db.transaction(who.tenant_id) as tx:
        return await _waivable(tx)


@router.put("/tools")
async def waive(services: Open, who: Reader, body: WaiverBody) -> dict[str, object]:
    """Let such a tool run without a person from the next turn on, or have a person asked again."""
    who.need("admin")
    async with services.db.transaction(who.tenant_id) as tx:
        await waivers.set_waiver(tx, body.tool, waived=not body.approval, user_id=who.user_id)
        return await _waivable(tx)


async def _waivable(tx: Connection) -> dict[str, object]:
    waived = await waivers.waivers(tx)
    return {"items": [{"tool": tool, "approval": tool not in waived} for tool in WAIVABLE], "next": None}


async def _rules(tx: Connection) -> tuple[Rule, ...]:
    """All of them as published, each once."""
    rules = {rule.id: rule for rule in PLATFORM_RULES}
    for _, agent in await content.listed(tx):
        rules |= {rule.id: rule for rule in rules_of(agent, (), {})}
    return tuple(rules.values())


async def _shown(tx: Connection) -> dict[str, object]:
    rules, own = await _rules(tx), await rule_actions.actions(tx)
    return {
        "items": [
            rule.model_dump(mode="json") | {"overridden": rule.do != published.do}
            for rule, published in zip(with_overrides(rules, own), rules, strict=True)
        ],
        "next": None,
    }
