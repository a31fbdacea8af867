"""What a verdict counts for: safety fails closed, intent and tone to their defaults (S1-12, S1-16)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.agents.safety_keywords import (
    MOST_CHARACTERS,
    Question,
    Safety,
    empathy_of,
    form_of,
    intent_of,
    safety_of,
)
from perdure.core.json_schema import schema_fault

KNOWN = ("Support", "booking")


@pytest.mark.parametrize(
    ("verdict", "found"),
    [
        ({"hijacked": False}, Safety(False, "")),
        ({"hijacked": False, "category": " none "}, Safety(False, "none")),
        ({"hijacked": True, "category": "harm"}, Safety(True, "harm")),
        (None, Safety(True, "unavailable")),
        ({}, Safety(True, "unavailable")),
        ({"hijacked": "false"}, Safety(True, "unavailable")),
        ({"hijacked": 0}, Safety(True, "unavailable")),
        ({"hijacked": None, "category": "none"}, Safety(True, "unavailable")),
        ({"hijacked": False, "category": "None."}, Safety(False, "None.")),
        ({"hijacked": False, "category": None}, Safety(False, "")),
        ({"hijacked": False, "category": "self_harm"}, Safety(True, "self_harm")),
        ({"hijacked": False, "category": 3}, Safety(True, "unavailable")),
        ({"hijacked": False, "category": ["self_harm"]}, Safety(True, "unavailable")),
        ({"hijacked": True, "category": "none"}, Safety(True, "none")),
    ],
)
def test_only_a_plain_no_clears_a_turn(verdict: dict[str, Any] | None, found: Safety) -> None:
    assert safety_of(verdict) == found


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10), lambda inner: st.lists(inner, max_size=2)
)


NOTHING = ["", " ", "none", "None", " NONE. ", "no", "null", "n/a", "N/A", "na", "safe", "nothing"]


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "hijacked": st.just(False) | json_values,
            "category": st.sampled_from([*NOTHING, "self_harm", "not none", "unsafe"]) | json_values,
            "x": json_values,
        },
    )
)
def test_nothing_but_a_no_that_names_no_danger_clears(verdict: dict[str, Any]) -> None:
    category = verdict.get("category")
    names_nothing = category is None or (
        isinstance(category, str) and (category in NOTHING or category.strip(" .").lower() in NOTHING)
    )
    assert safety_of(verdict).hijacked is not (verdict.get("hijacked") is False and names_nothing)


@pytest.mark.parametrize(
    ("verdict", "intent"),
    [
        ({"intent": "booking"}, "booking"),
        ({"intent": " SUPPORT "}, "Support"),
        ({"intent": "other"}, "booking"),
        ({"intent": ["booking"]}, "booking"),
        ({}, "booking"),
        (None, "booking"),
    ],
)
def test_an_intent_is_a_known_one(verdict: dict[str, Any] | None, intent: str) -> None:
    assert intent_of(verdict, KNOWN, "booking") == intent


def test_a_tone_is_what_was_said_of_it_cut_and_on_one_line() -> None:
    assert empathy_of(None) == {}
    assert empathy_of({"tone": " warm\n\n", "guidance": "x" * 9_999, "more": 1}) == {
        "tone": "warm",
        "guidance": "x" * MOST_CHARACTERS,
    }


@pytest.mark.parametrize("question", Question)
def test_a_form_needs_its_first_field(question: Question) -> None:
    form = form_of(question, KNOWN)
    assert schema_fault({}, form) is not None
    good: dict[Question, dict[str, Any]] = {
        Question.SAFETY: {"hijacked": False},
        Question.INTENT: {"intent": "booking"},
        Question.EMPATHY: {"tone": "warm"},
    }
    assert schema_fault(good[question], form) is None
