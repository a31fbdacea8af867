"""What a tenant's policy lets run without a person, and what it never does."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from perdure.activities.toolbox.engine_tools import MEMORY_BY_NAME
from perdure.contracts.agents import PlanCard, ToolCard, TurnPlan
from perdure.contracts.calls import EffectClass
from perdure.contracts.messages import CallRef
from perdure.contracts.skills import Rule, RuleAction, RuleTrigger
from perdure.contracts.turns import Limits
from perdure.core.agents.rule_matching import before_round
from perdure.core.approvals.gates import WAIVABLE, asks_by_itself, told_of, waived_of, waiver_fault
from perdure.core.approvals.validity import why_void

PATCH, PROPOSE = WAIVABLE
LOOK = Rule(id="app:look", on=RuleTrigger.BEFORE_TOOL_CALL, when={"tool": PATCH}, do=RuleAction.REQUIRE_HITL)
STOP = LOOK.model_copy(update={"id": "app:stop", "do": RuleAction.ABORT.value})
ODD = LOOK.model_copy(update={"id": "app:odd", "do": "allow"})


def card(name: str, effect: str = "local", *, gated: bool = True) -> ToolCard:
    """A tool's card."""
    return ToolCard(
        name=name, description="", parameters={}, effect=EffectClass(effect), needs_approval=gated, version="v"
    )


def plan(*cards: ToolCard, waived: tuple[str, ...] = (), rules: tuple[Rule, ...] = ()) -> TurnPlan:
    """A turn's plan."""
    planned = tuple(PlanCard(name=each.name, effect=each.effect, needs_approval=each.needs_approval) for each in cards)
    return TurnPlan(
        agent_id="a", agent_version="v", persona_key="agent", limits=Limits(), cards=planned, rules=rules, waived=waived
    )


def test_what_may_be_waived_is_what_of_memory_needs_an_approval() -> None:
    assert {*WAIVABLE} == {name for name, tool in MEMORY_BY_NAME.items() if tool.card.needs_approval}
    assert waived_of([tool.card for tool in MEMORY_BY_NAME.values()], [*MEMORY_BY_NAME]) == WAIVABLE


@pytest.mark.parametrize(
    ("of", "waivers", "asks"),
    [
        (card(PATCH), (), True),
        (card(PATCH), (PATCH,), False),
        (card(PATCH), (PROPOSE,), True),
        (card(PROPOSE), (PATCH, PROPOSE), False),
        (card(PATCH, "opaque"), (PATCH,), True),  # a server's tool of that name
        (card(PATCH, "keyed"), (PATCH,), True),
        (card("pay", "local"), ("pay",), True),
        (card("pay", "opaque"), ("pay", PATCH), True),
        (card("memory_remember", gated=False), ("memory_remember",), False),
    ],
)
def test_a_waiver_takes_away_the_approval_of_its_own_tool_and_no_others(
    of: ToolCard, waivers: tuple[str, ...], asks: bool
) -> None:
    assert asks_by_itself(of, waivers) is asks
    assert (waived_of([of], waivers) == ()) is (asks or not of.needs_approval)
    assert (why_void(of, of, "v", None, waivers) is not None) is asks, "the tool's worker finds the same"


@pytest.mark.parametrize(("rule", "action"), [(LOOK, "asked"), (STOP, "ended"), (ODD, "asked")])
def test_a_rule_stops_a_call_whose_own_approval_is_waived(rule: Rule, action: str) -> None:
    ruled = before_round(
        plan(card(PATCH), waived=WAIVABLE, rules=(rule,)), [CallRef(call_id="c", tool=PATCH, digest="")], {}
    )
    assert ([each.rule for each in ruled.gated] == [rule.id]) is (action == "asked")
    assert (ruled.abort is not None) is (action == "ended")
    assert ruled.waived == (), "nothing says that it was let pass"


def test_a_call_that_is_let_pass_is_told_as_a_rule_is() -> None:
    ruled = before_round(plan(card(PATCH), waived=(PATCH,)), [CallRef(call_id="c", tool=PATCH, digest="")], {})
    assert (ruled.gated, [each.call_id for each in ruled.waived]) == ((), ["c"])
    told = told_of(PATCH)
    assert (told["rule_id"], told["action"], told["tool"]) == ("tenant:approval_waived", "allow", PATCH)


@given(
    name=some.sampled_from([*WAIVABLE, "memory_remember", "pay", "refund"]) | some.text(max_size=20),
    effect=some.sampled_from([each.value for each in EffectClass]),
    waivers=some.lists(some.sampled_from([*WAIVABLE, "memory_remember", "pay", "refund"]) | some.text(max_size=20)),
)
def test_no_list_of_waivers_frees_anything_but_the_engines_own(name: str, effect: str, waivers: list[str]) -> None:
    of = card("x", effect).model_copy(update={"name": name})
    free = not asks_by_itself(of, waivers)
    assert free is (name in WAIVABLE and effect == "local" and name in waivers)
    assert waived_of([of], waivers) == ((name,) if free else ())
    ruled = before_round(plan(of, waived=tuple(waivers)), [CallRef(call_id="c", tool=name, digest="")], {})
    assert (ruled.gated == ()) is free
    assert (waiver_fault(name) is None) is (name in WAIVABLE)
