"""Budgets of a turn and of a day, quotas, retries and what a lost attempt cost."""

from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.activities import RetryClass
from perdure.contracts.agents import AgentDefinition, DayLimits
from perdure.contracts.errors import CallerError, UpstreamRejected
from perdure.contracts.turns import Limits, Usage
from perdure.core import budgets
from perdure.core.budgets import (
    TENANT,
    USUAL_ANSWER_TOKENS,
    DayUse,
    Hold,
    Quotas,
    RequestBound,
    Scope,
    UsedStorage,
    caps_of,
    hold_of,
)
from perdure.core.calls.retries import ATTEMPTS, NO_CAP, NUMBERS, assumed_usage, retry_after_seconds
from perdure.core.turns import Admission, AdmissionLoad, Caps, OnBusy, admit

LIMITS = Limits(max_tokens=100, max_cost_microusd=1_000)
amounts = st.integers(0, 10_000)
limits = st.builds(Limits, max_tokens=amounts, max_cost_microusd=amounts, max_iterations=st.integers(0, 50))
A_DAY = DayLimits(max_tokens=100, max_cost_microusd=1_000)
QUOTAS = Quotas(conversation_bytes=100, user_bytes=200, tenant_bytes=300)
sizes = st.integers(0, 400)
USUAL = Usage(input_tokens=100, output_tokens=USUAL_ANSWER_TOKENS, cost_microusd=100 + 3 * USUAL_ANSWER_TOKENS)


@pytest.mark.parametrize(("tokens", "cost", "code"), [
    *((0, 0, None), (99, 999, None), (100, 0, "token_budget_spent"), (101, 0, "token_budget_spent")),
    *((0, 1_000, "cost_budget_spent"), (0, 1_001, "cost_budget_spent"), (100, 1_000, "token_budget_spent")),
])  # fmt: skip
def test_a_budget_is_spent_when_the_usage_equals_it(tokens: int, cost: int, code: str | None) -> None:
    problem = budgets.spent_limit(LIMITS, tokens_used=tokens, cost_microusd=cost)
    assert (problem.code if problem else None) == code


@pytest.mark.parametrize(("used", "left"), [(0, 100), (60, 40), (100, 0), (250, 0)])
def test_an_answer_may_use_what_is_left_and_a_usual_answer_more(used: int, left: int) -> None:
    assert budgets.answer_token_limit(LIMITS, tokens_used=used) == left + USUAL_ANSWER_TOKENS


@pytest.mark.parametrize(("most", "left", "dollars", "bound"), [
    (150_000, 10_000, 10, 1_000 + USUAL_ANSWER_TOKENS),
    *((150_000, -5, 10, USUAL_ANSWER_TOKENS), (5_000, 10_000_000, 10, 5_000), (150_000, 10_000, 0, 150_000)),
    *((150_000, None, 10, 150_000), (None, 10_000, 10, None)),
])  # fmt: skip
def test_an_answer_may_use_the_money_left_and_a_usual_one_more(most: Any, left: Any, dollars: int, bound: Any) -> None:
    assert budgets.affordable_tokens(most, left, dollars * 1_000_000) == bound


@given(limits, st.none() | limits)
def test_a_request_lowers_a_limit_and_never_raises_one(base: Limits, asked: Limits | None) -> None:
    result = budgets.tighten_limits(base, asked)
    for name in Limits.model_fields:
        wanted = getattr(base, name) if asked is None else min(getattr(base, name), getattr(asked, name))
        assert getattr(result, name) == wanted
    assert budgets.tighten_limits(result, asked) == result


def use(tokens: int = 0, held: int = 0, cost: int = 0, held_cost: int = 0) -> DayUse:
    return DayUse("a", date(2026, 2, 28), tokens, cost, held, held_cost)


@pytest.mark.parametrize(("row", "code"), [
    *((use(), None), (use(tokens=99), None), (use(tokens=49, held=50), None)),
    (use(tokens=50, held=50), "day_token_budget_spent"),
    *((use(held=100), "day_token_budget_spent"), (use(tokens=100), "day_token_budget_spent")),
    (use(cost=500, held_cost=499), None), (use(cost=500, held_cost=500), "day_cost_budget_spent"),
    (use(tokens=100, cost=1_000), "day_token_budget_spent"), (use(tokens=70, held=40), "day_token_budget_spent"),
])  # fmt: skip
def test_a_daily_budget_is_met_when_usage_and_reservations_reach_it(row: DayUse, code: str | None) -> None:
    problem = budgets.reached_budget({"a": A_DAY}, [row])
    assert (problem.code if problem else None) == code
    assert budgets.reached_budget({"a": DayLimits()}, [row]) is None, "a limit of nothing meets nothing"


def test_a_call_waits_for_others_if_only_their_reservations_block_it() -> None:
    assert budgets.only_reserved({"a": A_DAY}, [use(tokens=99, held=50)])
    assert not budgets.only_reserved({"a": A_DAY}, [use(tokens=100, held=50)])
    assert not budgets.only_reserved({"a": A_DAY}, [use(cost=1_000)])
    assert budgets.resets_at(date(2026, 12, 31)) == datetime(2027, 1, 1, tzinfo=UTC), "a day ends at midnight UTC"


def test_a_call_reserves_its_maximum_in_its_agents_published_and_its_tenants_budget() -> None:
    free, limited = AgentDefinition(id="a", title="", topology="t"), DayLimits(max_tokens=5)
    agent = free.model_copy(update={"day_limits": A_DAY})
    assert caps_of(free, None) == {}
    assert caps_of(agent, None) == {"a": A_DAY}
    assert list(caps_of(agent, limited)) == ["a", TENANT], "in the order of their locks"
    assert caps_of(free, DayLimits()) == {TENANT: DayLimits()}, "a tenant that had a limit once is counted on"
    assert caps_of(free, None, limited) == {"a": limited} == caps_of(agent, None, limited), "not as it was pinned"
    assert caps_of(agent, limited, DayLimits()) == {TENANT: limited}, "it has none any more"
    assert hold_of({"a": DayLimits(max_tokens=9)}, RequestBound(5, None), "m") == Hold(5, 0)
    assert hold_of({"a": DayLimits()}, RequestBound(None, None), "m") == Hold(0, 0)
    assert hold_of({"a": A_DAY}, RequestBound(5, 7), "m") == Hold(5, 7)


UNKNOWN = RequestBound(None, None)
MONEY = DayLimits(max_cost_microusd=9)
UNBOUNDED = [(DayLimits(max_tokens=9), UNKNOWN, "output_unbounded"), (MONEY, UNKNOWN, "output_unbounded")]
UNBOUNDED += [(MONEY, RequestBound(5, None), "price_unknown"), (A_DAY, RequestBound(5, None), "price_unknown")]


@pytest.mark.parametrize(("limits", "most", "code"), UNBOUNDED)
def test_an_unbounded_call_is_not_started_under_a_limit(limits: DayLimits, most: RequestBound, code: str) -> None:
    with pytest.raises(UpstreamRejected) as refused:
        hold_of({"a": limits}, most, "vendor/new")
    assert refused.value.code == code


@given(
    st.integers(1, 300),
    st.lists(st.tuples(st.sampled_from(["claim", "settle", "release"]), st.integers(0, 80), st.integers(0, 9))),
)
def test_a_budget_is_exceeded_by_at_most_one_call_in_any_order(limit: int, steps: list[Any]) -> None:
    caps = {"a": DayLimits(max_tokens=limit)}
    used, running, largest = 0, list[int](), 0
    for what, amount, place in steps:
        held = sum(running)
        if what == "claim" and budgets.reached_budget(caps, [use(tokens=used, held=held)]) is None:
            running.append(amount)
            largest = max(largest, amount)
        elif what != "claim" and running:
            hold = running.pop(place % len(running))
            used += min(amount, hold) if what == "settle" else 0
        assert 0 <= used + sum(running) < limit + largest


@pytest.mark.parametrize(("used", "more", "expected"), [
    *((UsedStorage(), 100, None), (UsedStorage(), 101, Scope.CONVERSATION), (UsedStorage(100, 200, 300), 0, None)),
    *((UsedStorage(0, 200, 200), 1, Scope.USER), (UsedStorage(0, 0, 300), 1, Scope.TENANT)),
    (UsedStorage(101, 201, 301), 0, Scope.CONVERSATION),  # the narrowest says what to do
    (UsedStorage(0, 201, 301), 0, Scope.USER),
])  # fmt: skip
def test_a_quota_is_exceeded_by_the_first_byte_over_it(used: UsedStorage, more: int, expected: Scope | None) -> None:
    assert budgets.exceeded_scope(used, QUOTAS, more) is expected
    assert budgets.exceeded_scope(used, Quotas(), more) is None


def test_a_refusal_by_a_quota_contains_its_limit() -> None:
    quotas = Quotas(conversation_bytes=2**28, user_bytes=2**30, conversation_files=10)
    for scope in (Scope.USER, Scope.CONVERSATION):
        refused = budgets.quota_reached(UsedStorage(2**28, 2**30, 2**31), quotas, scope)
        assert (refused.code, refused.http) == ("quota_reached", 429)
        assert refused.details["retry_after_seconds"] is None and refused.details["limit_bytes"] == quotas.of(scope)
    budgets.check_files(9, quotas)
    budgets.check_files(10**6, Quotas())
    with pytest.raises(CallerError) as too_many:
        budgets.check_files(10, quotas)
    assert (too_many.value.code, too_many.value.http) == ("quota_reached", 429)


@given(st.booleans(), st.integers(0, 3), st.sampled_from(OnBusy), st.builds(UsedStorage, sizes, sizes, sizes), sizes)
def test_no_start_exceeds_a_quota(busy: bool, queued: int, on_busy: OnBusy, used: UsedStorage, more: int) -> None:
    load = AdmissionLoad(busy, queued, 1, used=used, message_bytes=more)
    admission = admit(load, Caps(quotas=QUOTAS), on_busy)
    assert (admission is Admission.QUOTA) == (budgets.exceeded_scope(used, QUOTAS, more) is not None)


@pytest.mark.parametrize(("retry", "attempts", "waits"), [
    (RetryClass.PROVIDER, ATTEMPTS, [1, 2, 4]),
    (RetryClass.TOOL, ATTEMPTS, [0.5, 1, 2, 4]),
    (RetryClass.UNTIL_BACK, NO_CAP, [0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]),
])  # fmt: skip
def test_waits_grow_to_a_limit_and_end_but_for_postgres(retry: RetryClass, attempts: int, waits: list[float]) -> None:
    numbers = NUMBERS[retry]
    grown = [numbers.wait_before(attempt).total_seconds() for attempt in range(2, len(waits) + 2)]
    assert grown == pytest.approx(waits)
    assert numbers.maximum_attempts == attempts
    assert numbers.wait_before(100_000) == numbers.wait_before(200), "no overflow"


def price(usage: Usage) -> int:
    """A micro-dollar a token in, three out."""
    return usage.input_tokens + 3 * usage.output_tokens


@pytest.mark.parametrize(("reserved", "usage"), [
    (None, USUAL),
    (Hold(0, 0), USUAL),  # counted in a budget without a limit
    (Hold(500, 70), Usage(input_tokens=100, output_tokens=400, cost_microusd=70)),
    (Hold(500, 0), Usage(input_tokens=100, output_tokens=400)),
    (Hold(60, 9), Usage(input_tokens=60, cost_microusd=9)),
])  # fmt: skip
def test_a_lost_attempt_counts_with_its_possible_cost(reserved: Hold | None, usage: Usage) -> None:
    assert assumed_usage(100, price, reserved) == usage


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 10**6))
def test_a_lost_attempt_uses_exactly_its_reservation_of_a_daily_budget(
    wanted_tokens: int, tokens: int, cost: int
) -> None:
    usage = assumed_usage(wanted_tokens, price, Hold(tokens, cost))
    assert (usage.tokens, usage.cost_microusd) == (tokens, cost)
    assert usage.input_tokens >= 0 and usage.output_tokens >= 0


def test_a_difference_of_usages_added_to_the_smaller_gives_the_larger() -> None:
    more = USUAL - Usage(input_tokens=130, cost_microusd=1)
    assert (more.input_tokens, more.tokens) == (-30, USUAL_ANSWER_TOKENS - 30)
    assert more.cost_microusd == USUAL.cost_microusd - 1


@pytest.mark.parametrize(("headers", "seconds"), [
    *(({"Retry-After": "7"}, 7.0), ({"retry-after": " 0.5 "}, 0.5), ({"RETRY-AFTER": "0"}, 0.0)),
    *(({"Retry-After": f"Sat, 21 Nov 2026 12:00:30 {zone}"}, 30.0) for zone in ("GMT", "-0000")),
    ({"Retry-After": "Sat, 21 Nov 2026 13:00:30 +0100"}, 30.0),
    ({"Retry-After": "Sat, 21 Nov 2026 11:00:00 GMT"}, 0.0), ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
    ({"retry-after-ms": "soon", "retry-after": "1"}, 1.0),
    *(({"Retry-After": text}, None) for text in ("-3", "nan", "inf", "in a while", "")),
    ({"Retry-After": "Sat, 99 Nov 2026 12:00:30 GMT"}, None), ({}, None),
])  # fmt: skip
def test_a_retry_after_is_read_in_each_of_its_formats(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_seconds(headers, datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)) == seconds
