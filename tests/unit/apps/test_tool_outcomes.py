"""perdure/sdk/outcomes.py: whatever a tool returns can be stored, because by then its effect has happened."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, JsonValue

from perdure.core.text import is_clean
from perdure.sdk.outcomes import ToolResult, ToolUnavailable, result_of


class _Point(BaseModel):
    x: int


class _Hostile:
    def __str__(self) -> str:
        raise RuntimeError


_CYCLE: list[Any] = []
_CYCLE.append(_CYCLE)


@pytest.mark.parametrize(
    ("returned", "stored"),
    [
        (None, None),
        ({"a": [1, 2.5, True]}, {"a": [1, 2.5, True]}),
        (_Point(x=1), {"x": 1}),
        (datetime(2026, 11, 21, tzinfo=UTC), "2026-11-21T00:00:00Z"),
        (Decimal("1.50"), "1.50"),
        ({1: "a"}, {"1": "a"}),
        ([float("nan"), float("inf"), 10**5_000], [None, None, None]),
        ("a\x00b", "a\ufffdb"),
        ({"\ud800": "\udfff"}, {"\ufffd": "\ufffd"}),
        (b"\xff", "_w=="),
    ],
)
def test_a_value_becomes_json_that_postgres_takes(returned: object, stored: JsonValue) -> None:
    assert result_of(returned) == ToolResult(stored)


@pytest.mark.parametrize("returned", [_Hostile(), _CYCLE])
def test_what_is_no_json_at_all_still_counts_as_done(returned: object) -> None:
    assert isinstance(result_of(returned).output, str)


def test_a_state_aware_result_keeps_its_updates_and_they_are_made_storable_too() -> None:
    made = result_of(ToolResult("ok", state={"count": 1, "text": "a\x00"}, working={"gone": None}))
    assert made == ToolResult("ok", state={"count": 1, "text": "a\ufffd"}, working={"gone": None})


@given(
    st.recursive(
        st.none() | st.floats() | st.text() | st.integers(), lambda i: st.lists(i) | st.dictionaries(st.text(), i)
    )
)
def test_any_result_can_be_written_as_strict_json(value: object) -> None:
    text = json.dumps(result_of(value).output, allow_nan=False, ensure_ascii=False)
    assert is_clean(text) and "\\u0000" not in text.replace("\\\\", "")


def test_a_wait_is_carried_where_the_target_named_one() -> None:
    assert ToolUnavailable("busy", 3.0).retry_after_seconds == 3.0
    assert ToolUnavailable("down").retry_after_seconds is None
