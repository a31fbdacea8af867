"""Marks in a model's answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.calls.arguments import MOST, extracted
from perdure.graph.topologies.skill_pipeline.nodes import SKILL_PATTERN


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("", "SKILL_SELECT:a", ()),
        (SKILL_PATTERN, "nothing here", ()),
        (SKILL_PATTERN, "SKILL_SELECT:one and SKILL_SELECT:two", ("one", "two")),
        (SKILL_PATTERN, "SKILL_SELECT:two SKILL_SELECT:one SKILL_SELECT:two", ("two", "one")),
        (SKILL_PATTERN, "SKILL_SELECT:a_1.", ("a_1",)),
        (SKILL_PATTERN, "SKILL_SELECT:Upper SKILL_SELECT: spaced skill_select:lower", ()),
        (SKILL_PATTERN, "SKILL_SELECT:" + "x" * 500, ("x" * 64,)),
        (r"<(.*?)>", "<" + "y" * 500 + ">", ("y" * 200,)),
    ],
)
def test_marks_are_found_in_order_each_once(pattern: str, text: str, found: tuple[str, ...]) -> None:
    assert extracted(pattern, text) == found


@given(st.lists(st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True), max_size=60))
def test_however_many_marks_there_are_a_history_stays_small(marks: list[str]) -> None:
    found = extracted(SKILL_PATTERN, " ".join(f"SKILL_SELECT:{mark}" for mark in marks))
    assert found == tuple(dict.fromkeys(marks))[:MOST]
