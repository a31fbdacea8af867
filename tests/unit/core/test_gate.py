"""Which calls need a person, and when a paused round may go on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.agents import PlanCard, TurnPlan
from perdure.contracts.approvals import Verdict, VerdictState
from perdure.contracts.calls import EffectClass
from perdure.contracts.messages import CallRef
from perdure.contracts.turns import Limits
from perdure.core.approvals.gates import (
    RULE_MUTATING,
    RULE_UNKNOWN,
    gate_round,
    round_is_decided,
    round_is_refused,
    rule_for,
    tool_needs_approval,
)

CARDS = (
    PlanCard(name="look", effect=EffectClass.READ, needs_approval=False),
    PlanCard(name="pay", effect=EffectClass.KEYED, needs_approval=True),
    PlanCard(name="peek", effect=EffectClass.READ, needs_approval=True),
    PlanCard(name="jot", effect=EffectClass.LOCAL, needs_approval=False),
)
PLAN = TurnPlan(agent_id="a", agent_version="v", persona_key="agent", limits=Limits(), cards=CARDS)


def calls_to(*tools: str) -> list[CallRef]:
    """One call to each."""
    return [CallRef(call_id=f"t1.{index}", tool=tool, digest="") for index, tool in enumerate(tools)]


@pytest.mark.parametrize(
    ("tool", "rule"),
    [("look", None), ("jot", None), ("pay", RULE_MUTATING), ("peek", RULE_MUTATING), ("nobody", RULE_UNKNOWN)],
)
def test_a_call_is_gated_by_its_card_and_an_unknown_one_always(tool: str, rule: str | None) -> None:
    assert rule_for(PLAN, calls_to(tool)[0]) == rule


@pytest.mark.parametrize(
    ("effect", "author_says", "gated"),
    [
        (EffectClass.READ, None, False),
        (EffectClass.LOCAL, None, True),
        (EffectClass.KEYED, None, True),
        (EffectClass.OPAQUE, None, True),
        (EffectClass.READ, True, True),
        (EffectClass.OPAQUE, False, False),
    ],
)
def test_whatever_may_change_something_needs_approval_unless_its_author_wrote_otherwise(
    effect: EffectClass, author_says: bool | None, gated: bool
) -> None:
    assert tool_needs_approval(effect, author_says) is gated


@given(st.lists(st.sampled_from(["look", "pay", "peek", "jot", "nobody"]), max_size=8))
def test_a_round_is_gated_call_by_call_in_its_order(tools: list[str]) -> None:
    calls = calls_to(*tools)
    gated = gate_round(PLAN, calls)
    assert [call.call_id for call in gated] == [
        call.call_id for call in calls if call.tool in ("pay", "peek", "nobody")
    ]
    assert all(call.rule for call in gated)


def verdicts(*states: VerdictState) -> list[Verdict]:
    """One verdict of each state."""
    return [Verdict(request_id=f"r{n}", call_id=f"t1.{n}", state=state) for n, state in enumerate(states)]


V = VerdictState


@pytest.mark.parametrize(
    ("states", "asked", "decided"),
    [
        ((), 0, False),
        ((), 1, False),
        ((V.APPROVED,), 1, True),
        ((V.APPROVED,), 2, False),
        ((V.APPROVED, V.REJECTED), 1, False),
        ((V.APPROVED, V.PENDING), 2, False),
        ((V.APPROVED, V.UNREADABLE), 2, False),
        ((V.EXPIRED, V.REJECTED, V.RESPONDED, V.WITHDRAWN, V.CANCELLED, V.EDITED, V.SETTLED), 7, True),
    ],
)
def test_a_round_goes_on_only_with_a_readable_verdict_for_each_request(
    states: tuple[VerdictState, ...], asked: int, decided: bool
) -> None:
    assert round_is_decided(verdicts(*states), asked) is decided


@given(st.lists(st.sampled_from(VerdictState), max_size=6))
def test_one_pending_or_unreadable_verdict_holds_the_whole_round(states: list[VerdictState]) -> None:
    open_ones = {VerdictState.PENDING, VerdictState.UNREADABLE} & set(states)
    assert round_is_decided(verdicts(*states), len(states)) == (bool(states) and not open_ones)


@given(st.lists(st.sampled_from(VerdictState), min_size=1, max_size=6))
def test_a_round_is_refused_when_nothing_of_it_may_run(states: list[VerdictState]) -> None:
    may_run = {VerdictState.APPROVED, VerdictState.EDITED, VerdictState.SETTLED} & set(states)
    assert round_is_refused(verdicts(*states)) == (not may_run)
