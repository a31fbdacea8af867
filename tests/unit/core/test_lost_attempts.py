"""What an attempt counts with that nobody hears of again: all that it reserved, else its request and a usual answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.turns import Usage
from perdure.core.budgets import USUAL_ANSWER_TOKENS, Hold
from perdure.core.calls.retries import assumed

USUAL = Usage(input_tokens=100, output_tokens=USUAL_ANSWER_TOKENS, cost_microusd=100 + 3 * USUAL_ANSWER_TOKENS)


def price(usage: Usage) -> int:
    """A micro-dollar a token in, three out."""
    return usage.input_tokens + 3 * usage.output_tokens


@pytest.mark.parametrize(
    ("reserved", "usage"),
    [
        (None, USUAL),
        (Hold(0, 0), USUAL),  # counted in a budget without a limit
        (Hold(500, 70), Usage(input_tokens=100, output_tokens=400, cost_microusd=70)),
        (Hold(500, 0), Usage(input_tokens=100, output_tokens=400)),
        (Hold(60, 9), Usage(input_tokens=60, cost_microusd=9)),
    ],
)
def test_a_lost_attempt_counts_with_what_it_may_have_cost(reserved: Hold | None, usage: Usage) -> None:
    assert assumed(100, price, reserved) == usage


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 10**6))
def test_of_a_days_budget_it_takes_what_it_had_reserved_and_no_more(asked: int, tokens: int, cost: int) -> None:
    usage = assumed(asked, price, Hold(tokens, cost))
    assert (usage.tokens, usage.cost_microusd) == (tokens, cost)
    assert usage.input_tokens >= 0 and usage.output_tokens >= 0


def test_the_difference_of_two_usages_is_added_to_the_smaller_one_again() -> None:
    more = USUAL.less(Usage(input_tokens=130, cost_microusd=1))
    assert (more.input_tokens, more.tokens) == (-30, USUAL_ANSWER_TOKENS - 30)
    assert more.cost_microusd == USUAL.cost_microusd - 1
