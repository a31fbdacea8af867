"""What a day may cost and a turn's raised limit, as typed by an administrator and a reviewer."""

import json
from typing import Any

import pytest

from tests.unit.apps.api_double import ApiDouble, said
from tests.unit.cli.conftest import Perdure

BUDGETS: dict[str, Any] = {
    "day": "2026-11-21",
    "resets_at": "2026-11-22T00:00:00Z",
    "tenant": {"max_tokens": 5_000, "used_tokens": 1_200, "reserved_tokens": 40, "used_cost_usd": 0.5},
    "agents": [{"agent": "desk", "max_tokens": None, "used_tokens": 7, "max_cost_usd": 30.0}],
}


def test_a_days_budgets_are_shown_with_what_is_used_and_reserved(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said(BUDGETS))
    ended = perdure("budgets", "show")
    assert ended.code == 0
    lines = [line.split() for line in ended.out.splitlines()]
    assert ["all", "agents", "1200", "40", "5000", "0.5000", "0.0000", "none"] in lines
    assert ["desk", "7", "0", "none", "0.0000", "0.0000", "30.00"] in lines
    assert "2026-11-22 00:00:00 UTC" in ended.out


def test_what_is_only_assumed_of_a_budget_is_told(perdure: Perdure, stack: ApiDouble) -> None:
    lost = {**BUDGETS["agents"][0], "assumed_tokens": 6, "assumed_cost_usd": 0.25}
    stack.will(said({**BUDGETS, "agents": [lost]}), said(BUDGETS))
    assert "0.2500" in perdure("budgets", "show").out
    assert "0.2500" not in perdure("budgets", "show").out


@pytest.mark.parametrize(
    ("words", "tokens", "usd"),
    [
        (["--tokens", "9000"], 9_000, 12.5),
        (["--usd", "3"], 5_000, 3.0),
        (["--no-tokens"], None, 12.5),
        (["--no-usd"], 5_000, None),
        (["--tokens", "9000", "--no-usd"], 9_000, None),
        (["--no-tokens", "--no-usd"], None, None),
    ],
)
def test_what_is_not_named_stays_as_it_is(
    perdure: Perdure, stack: ApiDouble, words: list[str], tokens: int | None, usd: float | None
) -> None:
    stack.will(said({**BUDGETS, "tenant": {**BUDGETS["tenant"], "max_cost_usd": 12.5}}), said(BUDGETS))
    ended = perdure("budgets", "set", *words, "--json")
    assert ended.code == 0 and json.loads(ended.out)["tenant"]["max_tokens"] == 5_000
    assert [(asked.method, asked.path) for asked in stack.asked] == [("GET", "/v1/budgets"), ("PUT", "/v1/budgets")]
    assert stack.asked[1].body == {"max_tokens": tokens, "max_cost_usd": usd}


def test_a_first_limit_leaves_the_other_one_out(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said({**BUDGETS, "tenant": None}), said(BUDGETS))
    assert perdure("budgets", "set", "--usd", "3").code == 0
    assert stack.asked[1].body == {"max_tokens": None, "max_cost_usd": 3.0}


@pytest.mark.parametrize(
    "words",
    [
        ["budgets", "set"],
        ["budgets", "set", "--tokens", "5", "--no-tokens"],
        ["budgets", "set", "--usd", "5", "--no-usd"],
        ["turns", "raise", "t-1"],
    ],
)
def test_no_limit_or_two_contradicting_ones_are_a_usage_error(
    perdure: Perdure, stack: ApiDouble, words: list[str]
) -> None:
    assert perdure(*words).code == 2
    assert not stack.asked


@pytest.mark.parametrize(
    ("option", "amount"),
    [
        *(("--usd", amount) for amount in ("nan", "inf", "-inf", "1e400", "-1", "0", "2e9", "much")),
        *(("--tokens", amount) for amount in ("0", "-1", "1e3", str(2**53 + 1))),
    ],
)
def test_an_invalid_amount_is_a_usage_error_and_sends_nothing(
    perdure: Perdure, stack: ApiDouble, option: str, amount: str
) -> None:
    ended = perdure("budgets", "set", f"{option}={amount}")
    assert (ended.code, ended.out, stack.asked) == (2, "", [])
    assert option in ended.err and "Traceback" not in ended.err


def test_a_turns_limit_is_raised_by_what_is_given(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said({"turn_id": "t-1", "limits": {"max_tokens": 900, "max_cost_usd": 5.0}}))
    assert perdure("turns", "raise", "t-1", "--tokens", "900").code == 0
    assert (stack.asked[0].method, stack.asked[0].path) == ("POST", "/v1/turns/t-1/limits")
    assert stack.asked[0].body == {"max_tokens": 900}
