"""What a day may cost and a turn's raised limit, as typed by an administrator and a reviewer."""

import json
from typing import Any

from tests.unit.cli.conftest import Perdure
from tests.unit.perdure.api_double import ApiDouble, said

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


def test_limits_are_set_together_so_that_what_is_left_out_has_none(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said(BUDGETS))
    ended = perdure("budgets", "set", "--tokens", "5000", "--json")
    assert ended.code == 0 and json.loads(ended.out)["tenant"]["max_tokens"] == 5_000
    assert (stack.asked[0].method, stack.asked[0].path) == ("PUT", "/v1/budgets")
    assert stack.asked[0].body == {"max_tokens": 5_000, "max_cost_usd": None}


def test_a_turns_limit_is_raised_by_what_is_given(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said({"turn_id": "t-1", "limits": {"max_tokens": 900, "max_cost_usd": 5.0}}))
    assert perdure("turns", "raise", "t-1", "--tokens", "900").code == 0
    assert (stack.asked[0].method, stack.asked[0].path) == ("POST", "/v1/turns/t-1/limits")
    assert stack.asked[0].body == {"max_tokens": 900}


def test_a_raise_of_nothing_is_a_mistake(perdure: Perdure, stack: ApiDouble) -> None:
    assert perdure("turns", "raise", "t-1").code == 2
    assert not stack.asked
