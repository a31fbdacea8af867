"""Rules: the platform's and those of the agents, as this tenant has them; an administrator makes them stricter."""

from fastapi import APIRouter
from pydantic import Field

from api.auth import Open, Reader
from api.bodies import Body
from contracts.skills import Rule
from policy.plans import rules_of
from policy.platform_rules import PLATFORM_RULES
from policy.rules import with_overrides
from store import content, rule_actions
from store.database import Connection

router = APIRouter(prefix="/v1/rules", tags=["rules"])


class RuleActionBody(Body):
    """PUT /v1/rules."""

    rule: str = Field(min_length=1, max_length=200)
    do: str = Field(min_length=1, max_length=40)


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
