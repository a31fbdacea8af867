"""Why calls of a tool wait for a person, or end a turn: told to whoever looks at an agent.

Told from what decides (policy/gate.py, policy/firing.py), and never asked by it. What is told may happen; whether it
does, a rule's other conditions say at the call.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pydantic import JsonValue

from contracts.agents import EffectClass, PlanCard, ToolCard
from contracts.skills import Rule, RuleTrigger
from policy.firing import that_can_fire
from policy.gate import RULE_MUTATING
from policy.waivers import asks_by_itself

_EFFECTS = {
    EffectClass.READ: "its author wants a person to see each call",
    EffectClass.LOCAL: "it changes what is kept here (local)",
    EffectClass.KEYED: "it changes something outside, under a key (keyed)",
    EffectClass.OPAQUE: "it changes something outside, and no key makes that safe to repeat (opaque)",
}
FREE_READ = "it changes nothing (read)"
FREE_BY_AUTHOR = "its author lets it run without a person"
FREE_BY_TENANT = "the tenant's policy lets it run without a person"


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason."""

    trigger: str
    """A RuleTrigger: before the call, or once it has answered."""
    action: str
    """A RuleAction."""
    rule: str
    why: str
    conditions: dict[str, JsonValue]
    """The rule's own; empty where it holds for every call."""


def reasons_of(card: ToolCard, rules: Iterable[Rule], waivers: Collection[str] = ()) -> tuple[Reason, ...]:
    """Every reason, the card's own first; `rules` are those of its agent, as the tenant has them, `waivers` the tools
    that the tenant lets run without a person."""
    own: tuple[Reason, ...] = ()
    if asks_by_itself(card, waivers):
        own = (Reason(RuleTrigger.BEFORE_TOOL_CALL.value, "require_hitl", RULE_MUTATING, _EFFECTS[card.effect], {}),)
    planned = PlanCard(
        name=card.name,
        effect=card.effect,
        needs_approval=card.needs_approval,
        capability=card.capability,
        wants_state=card.wants_state,
    )
    fitting = [rule for rule in that_can_fire(rules, [planned]) if not _is_told(rule, own)]
    return (*own, *(Reason(rule.on, rule.do, rule.id, rule.message, rule.when) for rule in fitting))


def free_because(card: ToolCard) -> str:
    """Why a tool without a gate of its own has none."""
    if card.needs_approval:
        return FREE_BY_TENANT
    return FREE_READ if card.effect is EffectClass.READ else FREE_BY_AUTHOR


def _is_told(rule: Rule, own: tuple[Reason, ...]) -> bool:
    """The platform's rule of changing tools says of such a tool what its card says already, unless it was made
    stricter."""
    return any(rule.id == each.rule and rule.do == each.action for each in own)
