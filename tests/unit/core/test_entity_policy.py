"""Resolving a name, and the last ten entities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from perdure.core.memory.facts import RECENT_MOST, Resolution, joined, remember, resolve


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


ids = st.lists(st.sampled_from([f"e{n}" for n in range(6)]), unique=True, max_size=5)


@given(ids, st.lists(st.sampled_from(["a", "b", "c", "d"]), unique=True, max_size=4))
def test_what_calls_side_by_side_add_is_all_kept_with_the_last_newest(before: list[str], added: list[str]) -> None:
    start: list[JsonValue] = [*before]
    now = start
    for entity_id in added:
        now = joined(start, now, remember(start, entity_id))
    assert now == [*before, *added]


@given(ids)
def test_where_nobody_else_has_added_anything_what_is_said_stands(before: list[str]) -> None:
    start: list[JsonValue] = [*before]
    said = remember(start, "e0")
    assert joined(start, start, said) == said
