"""A budget trips at equality, and a request can only tighten it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.turns import Limits
from perdure.core.budgets import USUAL_ANSWER_TOKENS, affordable, most_of_answer, spent, tightened

LIMITS = Limits(max_tokens=100, max_cost_microusd=1_000)


@pytest.mark.parametrize(
    ("tokens", "cost", "code"),
    [
        (0, 0, None),
        (99, 999, None),
        (100, 0, "token_budget_spent"),
        (101, 0, "token_budget_spent"),
        (0, 1_000, "cost_budget_spent"),
        (0, 1_001, "cost_budget_spent"),
        (100, 1_000, "token_budget_spent"),
    ],
)
def test_a_budget_is_spent_at_equality(tokens: int, cost: int, code: str | None) -> None:
    problem = spent(LIMITS, tokens_used=tokens, cost_microusd=cost)
    assert (problem.code if problem else None) == code


def test_the_message_names_the_setting_to_raise() -> None:
    tokens, cost = spent(LIMITS, tokens_used=100, cost_microusd=0), spent(LIMITS, tokens_used=0, cost_microusd=1_000)
    assert tokens is not None and "limits.max_tokens" in tokens.message
    assert cost is not None and "limits.max_cost_usd" in cost.message


def test_a_budget_of_nothing_allows_no_call() -> None:
    assert spent(Limits(max_tokens=0), tokens_used=0, cost_microusd=0) is not None


@pytest.mark.parametrize(("used", "left"), [(0, 100), (60, 40), (100, 0), (250, 0)])
def test_an_answer_may_use_what_is_left_and_a_usual_answers_length_more(used: int, left: int) -> None:
    assert most_of_answer(LIMITS, tokens_used=used) == left + USUAL_ANSWER_TOKENS


@pytest.mark.parametrize(
    ("most", "left_microusd", "dollars_a_million", "bound"),
    [
        (150_000, 10_000, 10, 1_000 + USUAL_ANSWER_TOKENS),
        (150_000, -5, 10, USUAL_ANSWER_TOKENS),
        (5_000, 10_000_000, 10, 5_000),
        (150_000, 10_000, 0, 150_000),
        (150_000, None, 10, 150_000),
        (None, 10_000, 10, None),
    ],
)
def test_an_answer_may_use_no_more_money_than_is_left_and_a_usual_answers_more(
    most: int | None, left_microusd: int | None, dollars_a_million: int, bound: int | None
) -> None:
    assert affordable(most, left_microusd, dollars_a_million * 1_000_000) == bound


amounts = st.integers(0, 10_000)
limits = st.builds(Limits, max_tokens=amounts, max_cost_microusd=amounts, max_iterations=st.integers(0, 50))


@given(limits, amounts, amounts, amounts, amounts)
def test_what_is_spent_stays_spent(limit: Limits, tokens: int, cost: int, more_tokens: int, more_cost: int) -> None:
    if spent(limit, tokens_used=tokens, cost_microusd=cost) is not None:
        assert spent(limit, tokens_used=tokens + more_tokens, cost_microusd=cost + more_cost) is not None


@given(limits, st.none() | limits)
def test_a_request_lowers_a_limit_and_never_raises_one(base: Limits, asked: Limits | None) -> None:
    result = tightened(base, asked)
    for name in Limits.model_fields:
        wanted = getattr(base, name) if asked is None else min(getattr(base, name), getattr(asked, name))
        assert getattr(result, name) == wanted
    assert tightened(result, asked) == result
