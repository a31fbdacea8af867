"""Resolving a name, and the last ten entities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from policy.entities import RECENT_MOST, Resolution, remember, resolve


@pytest.mark.parametrize(
    ("found", "resolution"),
    [
        ([], Resolution.NOT_FOUND),
        ([("1", "Ann")], Resolution.DECISIVE),
        ([("1", "Ann"), ("2", "Anna")], Resolution.AMBIGUOUS),
    ],
)
def test_only_one_match_is_decisive(found: list[tuple[str, str]], resolution: Resolution) -> None:
    assert resolve(found) is resolution


@pytest.mark.parametrize("nothing", [None, "text", 7, {}])
def test_a_memory_that_is_no_list_starts_anew(nothing: JsonValue) -> None:
    assert remember(nothing, "e1") == ["e1"]


@given(st.lists(st.sampled_from([f"e{n}" for n in range(15)]), max_size=40))
def test_the_newest_ten_are_remembered_each_once_newest_last(seen: list[str]) -> None:
    recent: list[JsonValue] = []
    for entity_id in seen:
        recent = remember(recent, entity_id)
    newest_first = list(dict.fromkeys(reversed(seen)))[:RECENT_MOST]
    assert recent == newest_first[::-1]
