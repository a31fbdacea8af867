"""Reducers: what survives a merge, what a marker takes away, and that a difference can always be said."""

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.contracts.errors import InvariantBroken
from perdure.graph.state import ADDITIVE, DEEP_MERGE, DELETE, LAST_VALUE, Field, Reducer, StateSchema, replace, same

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
keys = st.sampled_from(["a", "b", "$delete", "$replace"])
values = st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=12)


def merged(reducer: Reducer, old: Any, new: Any) -> Any:
    """`new` on `old` as the state does it, markers included."""
    schema = StateSchema((Field("field", None, reducer),))
    return schema.apply(schema.initial(field=old), {"field": new})["field"]


@pytest.mark.parametrize(
    ("old", "new", "after"),
    [
        (["a", "b"], ["b", "c"], ["a", "b", "c"]),
        ([1], [True, 1.0], [1, True, 1.0]),
        ([{"x": 1, "y": 2}], [{"y": 2, "x": 1}], [{"x": 1, "y": 2}]),
        ("old", "new", "new"),
        ("old", "", "old"),
        ("old", None, "old"),
        ({"a": 1}, {}, {"a": 1}),
        ([1], [], [1]),
        ({"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}),
        ({"a": 1}, {"a": 0}, {"a": 0}),
        ({"a": True}, {"a": False}, {"a": False}),
        ({}, {"a": ""}, {"a": ""}),
        ({"a": 1}, {"a": [1]}, {"a": [1]}),
        ({"a": [1]}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        (None, {"a": 1}, {"a": 1}),
    ],
)
def test_a_deep_merge_joins_and_empty_never_overwrites(old: Any, new: Any, after: Any) -> None:
    assert same(merged(DEEP_MERGE, old, new), after)


@pytest.mark.parametrize(
    ("old", "new", "after"),
    [
        ({"a": 1, "b": 2}, {"a": DELETE}, {"b": 2}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": DELETE}}, {"a": {"c": 2}}),
        ({"a": "text"}, {"a": replace("")}, {"a": ""}),
        ({"a": [1, 2, 3]}, {"a": replace([1, 3])}, {"a": [1, 3]}),
        ({"a": 1}, {"b": DELETE}, {"a": 1}),
        ({}, {"a": {"b": DELETE, "c": 1}}, {"a": {"c": 1}}),
        ({"a": "x"}, {"a": {"b": {"c": DELETE}}}, {"a": {"b": {}}}),
        ({"a": 1}, {"a": replace(DELETE)}, {"a": DELETE}),
        ({"a": 1}, replace({}), {}),
    ],
)
def test_markers_clear_what_a_merge_cannot(old: Any, new: Any, after: Any) -> None:
    assert merged(DEEP_MERGE, old, new) == after


def test_what_was_cleared_does_not_come_back_with_the_next_merge() -> None:
    cleared = merged(
        DEEP_MERGE, {"key": 1, "list": [1, 2], "text": "x"}, {"key": DELETE, "list": replace([2]), "text": replace("")}
    )
    later = merged(DEEP_MERGE, json.loads(json.dumps(cleared)), {"other": 1})
    assert later == {"list": [2], "text": "", "other": 1}


def test_delete_resets_a_whole_field_to_its_default() -> None:
    schema = StateSchema((Field("notes", ["first"], ADDITIVE), Field("facts", {"a": 1}, DEEP_MERGE)))
    state = schema.initial(notes=["x", "y"], facts={"b": 2})
    after = schema.apply(state, {"notes": DELETE, "facts": DELETE})
    assert (after["notes"], after["facts"]) == (["first"], {"a": 1})


def test_a_last_value_field_reads_no_markers() -> None:
    assert merged(LAST_VALUE, {"a": 1}, DELETE) == DELETE
    assert merged(LAST_VALUE, 1, replace(2)) == replace(2)


def test_an_additive_field_appends_lists_and_sums_numbers() -> None:
    assert merged(ADDITIVE, ["a", "a"], ["a"]) == ["a", "a", "a"]
    assert merged(ADDITIVE, 2, 3) == 5
    assert merged(ADDITIVE, ["a"], replace([])) == []


def test_an_additive_field_refuses_what_does_not_add() -> None:
    with pytest.raises(InvariantBroken, match=r"str.*list"):
        merged(ADDITIVE, [], "text")


@given(values, values)
def test_a_merge_changes_neither_of_its_arguments(old: Any, new: Any) -> None:
    old_before, new_before = deepcopy(old), deepcopy(new)
    merged(DEEP_MERGE, old, new)
    assert same(old, old_before)
    assert same(new, new_before)


@example(ADDITIVE, 1, True)
@example(ADDITIVE, 2, 5)
@example(DEEP_MERGE, ["a"], ["a", "a"])
@example(DEEP_MERGE, {"$replace": 1}, {"$replace": 2})
@example(DEEP_MERGE, {"a": 1}, DELETE)
@example(DEEP_MERGE, {"a": 1}, {"a": 1, "$replace": None})
@example(DEEP_MERGE, {"b": {"a": 1, "$delete": 1}}, {"b": {"a": 1, "$delete": True}})
@given(st.sampled_from([LAST_VALUE, ADDITIVE, DEEP_MERGE]), values, values)
def test_every_difference_can_be_said_as_a_patch(reducer: Reducer, before: Any, after: Any) -> None:
    schema = StateSchema((Field("field", None, reducer),))
    old, new = schema.initial(field=before), schema.initial(field=after)
    patch = schema.delta(old, new)
    assert same(schema.apply(old, patch), new)
    assert (patch == {}) == same(before, after)


@given(st.lists(plain), st.lists(plain))
def test_what_was_appended_is_said_as_an_addition_so_that_branches_keep_each_others(before: Any, added: Any) -> None:
    assert ADDITIVE.delta(before, [*before, *added]) == added


@given(st.dictionaries(keys, plain), plain, plain)
def test_differences_of_two_branches_join(common: dict[str, Any], one: Any, other: Any) -> None:
    schema = StateSchema((Field("field", {}, DEEP_MERGE),))
    start = schema.initial(field=common)
    patches = [
        schema.delta(start, schema.initial(field={**common, name: value})) for name, value in (("l", one), ("r", other))
    ]
    both = schema.apply(schema.apply(start, patches[0]), patches[1])
    assert same(both["field"], {**common, "l": one, "r": other})
