"""A state is five kernel fields and the topology's own, all JSON. Reducers: merges, markers, differences."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.contracts.errors import InvariantBroken
from perdure.graph import state as states
from perdure.graph.state import (
    ADDITIVE,
    DEEP_MERGE,
    DELETE,
    LAST_VALUE,
    Field,
    Reducer,
    StateSchema,
    replace,
    same_json,
)

SCHEMA = StateSchema((Field("notes", [], ADDITIVE), Field("facts", {"known": []}, DEEP_MERGE), Field("count", 0)))
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
keys = st.sampled_from(["a", "b", "$delete", "$replace"])
values = st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=12)


def test_a_topology_may_give_the_kernels_fields_reducers_and_defaults() -> None:
    empty: dict[str, Any] = {"error": None, "current_node": None, "pending_requests": [], "messages": []}
    assert StateSchema().initial() == {"status": "running", **empty}
    schema = StateSchema((Field("messages", [], ADDITIVE), Field("status", "pending")))
    state = schema.apply(schema.initial(), {"messages": [{"role": "user"}]})
    assert state["status"] == "pending"
    assert schema.apply(state, {"messages": [{"role": "tool"}]})["messages"] == [{"role": "user"}, {"role": "tool"}]


def test_fresh_states_share_nothing_with_each_other_or_with_what_they_were_given() -> None:
    given_notes: list[Any] = ["a"]
    one, other = SCHEMA.initial(notes=given_notes), SCHEMA.initial()
    facts: Any = one["facts"]
    facts["known"].append("x")
    given_notes.append("b")
    assert one["notes"] == ["a"]
    assert other["facts"] == SCHEMA.initial()["facts"] == {"known": []}


def test_a_carried_state_takes_new_fields_and_drops_old_ones() -> None:
    carried: dict[str, Any] = {"status": "awaiting", "notes": ["kept"], "dropped_since": 1}
    assert SCHEMA.resume_state(carried) == SCHEMA.initial(status="awaiting", notes=["kept"])


def test_applying_a_patch_leaves_the_state_before_as_it_was() -> None:
    before = SCHEMA.initial(notes=["a"])
    after = SCHEMA.apply(before, {"notes": ["b"], "count": 1, "facts": {"known": [1]}})
    assert before == SCHEMA.initial(notes=["a"])
    assert (after["notes"], after["count"], after["facts"]) == (["a", "b"], 1, {"known": [1]})


@pytest.mark.parametrize(("patch", "names"), [
    ({"cuont": 1}, "`n`.*cuont"), ({"count": (1, 2)}, "count.*tuple"), ({"facts": {1: "x"}}, "facts.*1"),
    ({"facts": {"a": [{"b": {1, 2}}]}}, r"facts\.a\[0\]\.b.*set"), ({"error": ValueError()}, "error.*ValueError"),
    ({"count": float("nan")}, "count.*nan"), ({"count": float("inf")}, "count.*inf"),
    (None, "`n`.*NoneType"), ([], "`n`.*list"),
])  # fmt: skip
def test_an_invalid_patch_is_refused_with_its_author_and_place(patch: Any, names: str) -> None:
    with pytest.raises(InvariantBroken, match=names) as refused:
        SCHEMA.check(patch, "Node `n`")
    assert refused.value.code == "patch_refused"


def test_json_is_accepted_but_no_unknown_field_in_a_fresh_state() -> None:
    fine: list[Any] = [None, True, 0, -1.5, "", [], {}, {"a": [1, {"b": None}]}]
    assert {states.not_json(value, "field") for value in fine} == {""}
    with pytest.raises(InvariantBroken, match="nots"):
        SCHEMA.initial(nots=[])


def test_delete_resets_a_whole_field_to_its_default() -> None:
    schema = StateSchema((Field("notes", ["first"], ADDITIVE), Field("facts", {"a": 1}, DEEP_MERGE)))
    after = schema.apply(schema.initial(notes=["x"], facts={"b": 2}), {"notes": DELETE, "facts": DELETE})
    assert (after["notes"], after["facts"]) == (["first"], {"a": 1})


def merged(reducer: Reducer, old: Any, new: Any) -> Any:
    """`new` on `old` as the state does it, markers included."""
    schema = StateSchema((Field("field", None, reducer),))
    return schema.apply(schema.initial(field=old), {"field": new})["field"]


@pytest.mark.parametrize(("old", "new", "after"), [
    (["a", "b"], ["b", "c"], ["a", "b", "c"]), ([1], [True, 1.0], [1, True, 1.0]),
    ([{"x": 1, "y": 2}], [{"y": 2, "x": 1}], [{"x": 1, "y": 2}]), ("old", "new", "new"),
    *((old, new, old) for old, new in (("old", ""), ("old", None), ({"a": 1}, {}), ([1], []))),
    ({"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}),
    *((old, {"a": 0}, {"a": 0}) for old in ({"a": 1}, {"a": True}, {"a": [1]}, {}, None)),
    ({"a": 1}, {"a": [1]}, {"a": [1]}), ({"a": [1]}, {"a": {"b": 1}}, {"a": {"b": 1}}),
    # Markers clear what a merge cannot.
    ({"a": 1, "b": 2}, {"a": DELETE}, {"b": 2}), ({"a": {"b": 1, "c": 2}}, {"a": {"b": DELETE}}, {"a": {"c": 2}}),
    ({"a": "text"}, {"a": replace("")}, {"a": ""}), ({"a": [1, 2, 3]}, {"a": replace([1, 3])}, {"a": [1, 3]}),
    ({"a": 1}, {"b": DELETE}, {"a": 1}), ({}, {"a": {"b": DELETE, "c": 1}}, {"a": {"c": 1}}),
    ({"a": "x"}, {"a": {"b": {"c": DELETE}}}, {"a": {"b": {}}}), ({"a": 1}, {"a": replace(DELETE)}, {"a": DELETE}),
    ({"a": 1}, replace({}), {}),
])  # fmt: skip
def test_a_deep_merge_joins_clears_by_markers_and_empty_never_overwrites(old: Any, new: Any, after: Any) -> None:
    assert same_json(merged(DEEP_MERGE, old, new), after)


@pytest.mark.parametrize(("reducer", "old", "new", "after"), [
    (LAST_VALUE, {"a": 1}, DELETE, DELETE),  # it reads no markers
    (LAST_VALUE, 1, replace(2), replace(2)),
    (ADDITIVE, ["a", "a"], ["a"], ["a", "a", "a"]),
    (ADDITIVE, 2, 3, 5),
    (ADDITIVE, ["a"], replace([]), []),
])  # fmt: skip
def test_last_values_replace_and_additive_ones_append_or_sum(reducer: Reducer, old: Any, new: Any, after: Any) -> None:
    assert merged(reducer, old, new) == after
    with pytest.raises(InvariantBroken, match=r"str.*list"):
        merged(ADDITIVE, [], "text")


@given(values, values)
def test_a_merge_changes_neither_of_its_arguments(old: Any, new: Any) -> None:
    before = deepcopy((old, new))
    merged(DEEP_MERGE, old, new)
    assert same_json(old, before[0]) and same_json(new, before[1])


@example(ADDITIVE, 1, True)
@example(ADDITIVE, 2, 5)
@example(DEEP_MERGE, ["a"], ["a", "a"])
@example(DEEP_MERGE, {"$replace": 1}, {"$replace": 2})
@example(DEEP_MERGE, {"a": 1}, DELETE)
@example(DEEP_MERGE, {"a": 1}, {"a": 1, "$replace": None})
@example(DEEP_MERGE, {"b": {"a": 1, "$delete": 1}}, {"b": {"a": 1, "$delete": True}})
@given(st.sampled_from([LAST_VALUE, ADDITIVE, DEEP_MERGE]), values, values)
def test_every_difference_can_be_written_as_a_patch(reducer: Reducer, before: Any, after: Any) -> None:
    schema = StateSchema((Field("field", None, reducer),))
    old, new = schema.initial(field=before), schema.initial(field=after)
    patch = schema.delta(old, new)
    assert same_json(schema.apply(old, patch), new)
    assert (patch == {}) == same_json(before, after)


@given(st.lists(plain), st.lists(plain))
def test_appended_values_are_an_addition_so_that_branches_keep_each_others(before: Any, added: Any) -> None:
    assert ADDITIVE.delta(before, [*before, *added]) == added


@given(st.dictionaries(keys, plain), plain, plain)
def test_differences_of_two_branches_join(common: dict[str, Any], one: Any, other: Any) -> None:
    schema = StateSchema((Field("field", {}, DEEP_MERGE),))
    start = schema.initial(field=common)
    left, right = (schema.delta(start, schema.initial(field={**common, **new})) for new in ({"l": one}, {"r": other}))
    assert same_json(schema.apply(schema.apply(start, left), right)["field"], {**common, "l": one, "r": other})
