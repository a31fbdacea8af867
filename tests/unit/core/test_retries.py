"""Retries: which, when, and what a lost attempt cost."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.activities import RetryClass
from perdure.contracts.turns import Usage
from perdure.core.budgets import USUAL_ANSWER_TOKENS, Hold
from perdure.core.calls.retries import ATTEMPTS, NO_CAP, NUMBERS, assumed_usage, retry_after_seconds


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


USUAL = Usage(input_tokens=100, output_tokens=USUAL_ANSWER_TOKENS, cost_microusd=100 + 3 * USUAL_ANSWER_TOKENS)


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
def test_a_lost_attempt_uses_exactly_its_reservation_of_a_daily_budget(asked: int, tokens: int, cost: int) -> None:
    usage = assumed_usage(asked, price, Hold(tokens, cost))
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
    ({"Retry-After": "Sat, 21 Nov 2026 11:00:00 GMT"}, 0.0),
    ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
    ({"retry-after-ms": "soon", "retry-after": "1"}, 1.0),
    *(({"Retry-After": text}, None) for text in ("-3", "nan", "inf", "in a while", "")),
    ({"Retry-After": "Sat, 99 Nov 2026 12:00:30 GMT"}, None),
    ({}, None),
])  # fmt: skip
def test_a_retry_after_is_read_in_each_of_its_formats(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_seconds(headers, datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)) == seconds
