"""Whether an answer to a turn's question counts."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.approvals.validity import MOST_CHARACTERS, Asked, answer_refusal

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string", "minLength": 1}},
    "required": ["text"],
    "additionalProperties": False,
}
OPEN = Asked("clarification", "pending", SCHEMA, NOW + timedelta(days=1), NOW)
SAID: dict[str, Any] = {"text": "the second one"}


@pytest.mark.parametrize(
    ("asked", "kind", "payload", "code"),
    [
        (OPEN, "clarification", SAID, None),
        (OPEN, "clarification", {}, "answer_invalid"),
        (OPEN, "clarification", {"text": ""}, "answer_invalid"),
        (OPEN, "clarification", {"text": "a", "more": 1}, "answer_invalid"),
        (OPEN, "clarification", {"text": "half \ud800"}, "answer_invalid"),
        (OPEN, "clarification", {"text": "a" * MOST_CHARACTERS}, "answer_too_large"),
        (OPEN, "client_run", SAID, "wrong_kind"),
        (replace(OPEN, status="answered"), "client_run", {}, "already_answered"),
        (replace(OPEN, status="answered", over=True), "clarification", SAID, "already_answered"),
        (replace(OPEN, status="expired"), "clarification", SAID, "question_expired"),
        (replace(OPEN, expires_at=NOW), "clarification", SAID, "question_expired"),
        (replace(OPEN, over=True), "clarification", SAID, "turn_stopped"),
        (replace(OPEN, status="cancelled"), "clarification", SAID, "turn_stopped"),
    ],
)
def test_the_first_reason_in_the_contracts_order_refuses_an_answer(
    asked: Asked, kind: str, payload: dict[str, Any], code: str | None
) -> None:
    refused = answer_refusal(asked, kind, payload)
    assert (refused.code if refused else None) == code


@given(
    st.builds(
        Asked,
        st.sampled_from(["clarification", "client_run"]),
        st.sampled_from(["pending", "answered", "expired", "cancelled"]),
        st.just(SCHEMA),
        st.integers(-2, 2).map(lambda hours: NOW + timedelta(hours=hours)),
        st.just(NOW),
        st.booleans(),
    ),
    st.sampled_from(["clarification", "client_run", "other"]),
    st.dictionaries(st.sampled_from(["text", "other"]), st.text("ab", max_size=2) | st.integers(0, 3), max_size=2),
)
def test_nothing_counts_but_a_fitting_answer_in_time_to_a_turn_that_goes_on(
    asked: Asked, kind: str, payload: dict[str, Any]
) -> None:
    if answer_refusal(asked, kind, payload) is None:
        assert asked.status == "pending" and asked.expires_at > NOW and not asked.over and kind == asked.kind
        assert set(payload) == {"text"} and payload["text"]
