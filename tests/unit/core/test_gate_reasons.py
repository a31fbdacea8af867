"""Why a tool's calls wait for a person: what is told is what decides."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from perdure.contracts.agents import PlanCard, ToolCard, TurnPlan
from perdure.contracts.calls import EffectClass
from perdure.contracts.messages import CallRef
from perdure.contracts.skills import Rule, RuleAction, RuleTrigger
from perdure.contracts.turns import Limits
from perdure.core.agents.rule_matching import (
    FREE_BY_AUTHOR,
    FREE_READ,
    PLATFORM_RULES,
    before_round,
    free_because,
    reasons_of,
)
from perdure.core.approvals.gates import RULE_MUTATING

BEFORE, AFTER = RuleTrigger
LOOK = Rule(id="app:look", on=BEFORE, when={"tool": ["pay"]}, do=RuleAction.REQUIRE_HITL, message="look first")
STOP = Rule(id="app:stop", on=BEFORE, when={"capability": ["money_*"]}, do=RuleAction.ABORT)
TASTE = Rule(id="app:taste", on=AFTER, when={"result": {"path": "ok", "equals": True}}, do=RuleAction.REQUIRE_HITL)


def card(name: str = "pay", effect: str = "keyed", *, gated: bool = True, capability: str = "") -> ToolCard:
    """A tool's card."""
    return ToolCard(
        name=name, description="", parameters={}, effect=EffectClass(effect), needs_approval=gated,
        capability=capability, version="v",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("of", "rules", "told"),
    [
        (card(), (), [(RULE_MUTATING, "require_hitl", "under a key")]),
        (card(effect="opaque"), (), [(RULE_MUTATING, "require_hitl", "no key")]),
        (card(effect="read", gated=True), (), [(RULE_MUTATING, "require_hitl", "author wants")]),
        (card(effect="read", gated=False), (), []),
        (card(effect="local", gated=False), (STOP,), []),
        (card(gated=False), (LOOK,), [("app:look", "require_hitl", "look first")]),
        (card(), (LOOK, STOP), [(RULE_MUTATING, "require_hitl", ""), ("app:look", "require_hitl", "look first")]),
        (card("see", "read", gated=False, capability="money_out"), (LOOK, STOP), [("app:stop", "abort", "")]),
        (card("see", "read", gated=False), (TASTE,), [("app:taste", "require_hitl", "")]),
        (card("new", "local", capability="create_entity"), PLATFORM_RULES, [(RULE_MUTATING, "require_hitl", "local")]),
    ],
)  # fmt: skip
def test_a_tool_is_told_with_what_may_stop_it(
    of: ToolCard, rules: tuple[Rule, ...], told: list[tuple[str, str, str]]
) -> None:
    found = reasons_of(of, rules)
    assert [(each.rule, each.action) for each in found] == [(rule, action) for rule, action, _ in told]
    assert all(words in each.why for each, (_, _, words) in zip(found, told, strict=True))


def test_a_platform_rule_that_a_tenant_made_stricter_is_told_beside_the_cards_own() -> None:
    strict = PLATFORM_RULES[0].model_copy(update={"do": RuleAction.ABORT.value})
    found = reasons_of(card("new", "local", capability="create_entity"), (strict,))
    assert [each.action for each in found] == ["require_hitl", "abort"]


def test_a_tool_without_a_gate_says_why_it_has_none() -> None:
    assert free_because(card(effect="read", gated=False)) == FREE_READ
    assert free_because(card(effect="local", gated=False)) == FREE_BY_AUTHOR


@given(
    name=some.sampled_from(["pay", "see"]),
    effect=some.sampled_from([each.value for each in EffectClass]),
    gated=some.booleans(),
    capability=some.sampled_from(["", "money_out", "create_entity"]),
    rules=some.lists(some.sampled_from([LOOK, STOP, TASTE, *PLATFORM_RULES]), unique_by=lambda rule: rule.id),
)
def test_whatever_stops_a_call_before_it_runs_is_told(
    name: str, effect: str, gated: bool, capability: str, rules: list[Rule]
) -> None:
    of = card(name, effect, gated=gated, capability=capability)
    planned = PlanCard(name=name, effect=of.effect, needs_approval=gated, capability=capability)
    plan = TurnPlan(
        agent_id="a", agent_version="v", persona_key="agent", limits=Limits(), cards=(planned,), rules=tuple(rules)
    )
    ruled = before_round(plan, [CallRef(call_id="t1.0", tool=name, digest="d")], {})
    told = {(each.rule, each.action) for each in reasons_of(of, rules) if each.trigger == BEFORE}
    assert {(each.rule, "require_hitl") for each in ruled.gated} <= told
    assert ruled.abort is None or (ruled.abort.rule_id, "abort") in told
