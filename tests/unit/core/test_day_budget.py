"""What a call must hold of a day's budgets, and when one of them is met."""

from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.agents import AgentDefinition, DayLimits
from perdure.contracts.errors import UpstreamRejected
from perdure.core.budgets import TENANT, Bound, DayUse, Hold, caps_of, hold_of, met, only_reserved, resets_at

DAY = date(2026, 2, 28)
LIMITS = DayLimits(max_tokens=100, max_cost_microusd=1_000)


def use(tokens: int = 0, held: int = 0, cost: int = 0, held_cost: int = 0, agent_id: str = "a") -> DayUse:
    """A budget's row."""
    return DayUse(agent_id, DAY, tokens, cost, held, held_cost)


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (use(), None),
        (use(tokens=99), None),
        (use(tokens=49, held=50), None),
        (use(tokens=50, held=50), "day_token_budget_spent"),
        (use(held=100), "day_token_budget_spent"),
        (use(tokens=100), "day_token_budget_spent"),
        (use(cost=500, held_cost=499), None),
        (use(cost=500, held_cost=500), "day_cost_budget_spent"),
        (use(tokens=100, cost=1_000), "day_token_budget_spent"),
    ],
)
def test_a_days_budget_is_met_where_used_and_held_reach_it(row: DayUse, code: str | None) -> None:
    problem = met({"a": LIMITS}, [row])
    assert (problem.code if problem else None) == code


def test_the_problem_says_which_budget_what_is_used_and_reserved_and_when_it_begins_anew() -> None:
    tokens = met({"a": LIMITS}, [use(tokens=70, held=40)])
    assert tokens is not None and tokens.message == (
        "the day's budget of the agent a is spent: 70 of 100 tokens are used and 40 reserved by calls under way; "
        "it begins anew at 2026-03-01 00:00 UTC"
    )
    cost = met({TENANT: LIMITS}, [use(cost=900, held_cost=200, agent_id=TENANT)])
    assert cost is not None and cost.message == (
        "the day's budget of all agents together is spent: 0.0009 of 0.0010 USD are used and 0.0002 reserved by calls "
        "under way; it begins anew at 2026-03-01 00:00 UTC"
    )


def test_a_call_waits_for_others_where_only_their_reservations_stand_before_it() -> None:
    assert only_reserved({"a": LIMITS}, [use(tokens=99, held=50)])
    assert not only_reserved({"a": LIMITS}, [use(tokens=100, held=50)])
    assert not only_reserved({"a": LIMITS}, [use(cost=1_000)])


def test_a_day_ends_at_midnight_utc() -> None:
    assert resets_at(date(2026, 12, 31)) == datetime(2027, 1, 1, tzinfo=UTC)


def test_a_limit_of_nothing_meets_nothing() -> None:
    assert met({TENANT: DayLimits()}, [use(tokens=10**15, cost=10**15, agent_id=TENANT)]) is None


def test_a_call_counts_in_its_agents_budget_and_in_its_tenants() -> None:
    free, limited = AgentDefinition(id="free", title="", topology="t"), DayLimits(max_tokens=5)
    agent = free.model_copy(update={"id": "a", "day_limits": LIMITS})
    assert caps_of(free, None) == {}
    assert caps_of(agent, None) == {"a": LIMITS}
    assert list(caps_of(agent, limited)) == ["a", TENANT], "in the order of their locks"
    assert caps_of(free, DayLimits()) == {TENANT: DayLimits()}, "a tenant that had a limit once is counted on"


def test_the_published_version_of_an_agent_limits_the_turns_that_pinned_another() -> None:
    free = AgentDefinition(id="a", title="", topology="t")
    pinned = free.model_copy(update={"day_limits": LIMITS})
    lower = DayLimits(max_tokens=5)
    assert caps_of(free, None, lower) == {"a": lower} == caps_of(pinned, None, lower)
    assert caps_of(pinned, lower, DayLimits()) == {TENANT: lower}, "it has none any more"


@pytest.mark.parametrize(
    ("limits", "most", "code"),
    [
        (DayLimits(max_tokens=9), Bound(None, None), "output_unbounded"),
        (DayLimits(max_cost_microusd=9), Bound(None, None), "output_unbounded"),
        (DayLimits(max_cost_microusd=9), Bound(5, None), "price_unknown"),
        (LIMITS, Bound(5, None), "price_unknown"),
    ],
)
def test_what_nobody_can_bound_is_not_begun_under_a_limit(limits: DayLimits, most: Bound, code: str) -> None:
    with pytest.raises(UpstreamRejected) as refused:
        hold_of({"a": limits}, most, "vendor/new")
    assert refused.value.code == code and "vendor/new" in refused.value.message


@pytest.mark.parametrize(
    ("limits", "most", "hold"),
    [
        (DayLimits(max_tokens=9), Bound(5, None), Hold(5, 0)),
        (DayLimits(), Bound(None, None), Hold(0, 0)),
        (LIMITS, Bound(5, 7), Hold(5, 7)),
    ],
)
def test_a_call_holds_the_most_that_it_can_use(limits: DayLimits, most: Bound, hold: Hold) -> None:
    assert hold_of({"a": limits}, most, "m") == hold


@given(
    st.integers(1, 300),
    st.lists(st.tuples(st.sampled_from(["claim", "settle", "release"]), st.integers(0, 80), st.integers(0, 9))),
)
def test_no_order_of_calls_overspends_by_more_than_one_hold_or_goes_below_zero(
    limit: int, steps: list[tuple[str, int, int]]
) -> None:
    caps = {"a": DayLimits(max_tokens=limit)}
    used, running, largest = 0, list[int](), 0
    for what, amount, place in steps:
        held = sum(running)
        if what == "claim" and met(caps, [use(tokens=used, held=held)]) is None:
            running.append(amount)
            largest = max(largest, amount)
        elif what != "claim" and running:
            hold = running.pop(place % len(running))
            used += min(amount, hold) if what == "settle" else 0
        assert 0 <= used + sum(running) < limit + largest
