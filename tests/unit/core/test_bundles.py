"""What an assembly tool is given and what of its output counts (S1-18, S1-26, S1-27, S1-37)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.calls.context_assembly import (
    MOST_CHARACTERS,
    aggregated,
    arguments,
    completeness_of,
    context_message,
    guidance,
)

VALUES = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3), max_size=4)


@pytest.mark.parametrize(
    ("defaults", "inject", "outputs", "caller", "given_to_it"),
    [
        ({"a": 1}, (), {}, {}, {"a": 1}),
        ({"a": 1}, ("a",), {"a": 2}, {}, {"a": 2}),
        ({"a": 1}, ("a",), {"a": 2}, {"a": 3}, {"a": 3}),
        ({}, ("a", "b"), {"a": 2}, {}, {"a": 2}),
        ({}, (), {"a": 2}, {}, {}),
        ({"a": 1}, ("a",), {"a": None}, {}, {"a": None}),
    ],
)
def test_the_order_of_arguments(
    defaults: dict[str, Any], inject: tuple[str, ...], outputs: dict[str, Any], caller: dict[str, Any], given_to_it: Any
) -> None:
    assert arguments(defaults, inject, outputs, caller) == given_to_it


@given(VALUES, st.lists(st.sampled_from("abcd")), VALUES, VALUES)
def test_each_key_comes_from_the_uppermost_that_has_it(
    defaults: dict[str, Any], inject: list[str], outputs: dict[str, Any], caller: dict[str, Any]
) -> None:
    found = arguments(defaults, inject, outputs, caller)
    injected = {key: value for key, value in outputs.items() if key in inject}
    assert set(found) == {*defaults, *injected, *caller}
    for key, value in found.items():
        assert value == next(each[key] for each in (caller, injected, defaults) if key in each)


def test_one_call_cannot_alter_the_defaults_of_another() -> None:
    defaults: dict[str, Any] = {"filter": {"ids": [1]}}
    first = arguments(defaults, (), {}, {})
    nested: Any = first["filter"]
    nested["ids"].append(2)
    assert arguments(defaults, (), {}, {}) == {"filter": {"ids": [1]}}


def test_later_outputs_are_over_earlier_ones_and_completeness_is_injected_nowhere() -> None:
    assert aggregated([{"a": 1, "completeness": 1}, {"a": 2, "b": 3}]) == {"a": 2, "b": 3}


@pytest.mark.parametrize(
    ("output", "completeness"),
    [({}, 0.0), ({"completeness": 0}, 0.0), ({"completeness": 1}, 1.0), ({"completeness": 0.4}, 0.4)],
)
def test_completeness_is_from_none_to_all(output: dict[str, Any], completeness: float) -> None:
    assert completeness_of(output) == completeness


@pytest.mark.parametrize("said", [float("nan"), float("inf"), -0.01, -1, 1.0001, 2, "0.5", None, True, [0.5], 10**400])
def test_a_completeness_that_is_none_is_refused(said: Any) -> None:
    with pytest.raises(ValueError, match="its completeness must be a number from 0 to 1, and is ") as refused:
        completeness_of({"completeness": said})
    assert ("as NaN and infinities are none" in str(refused.value)) == (said is None or said != said)
    assert len(str(refused.value)) < 140


@pytest.mark.parametrize("output", [None, [], "text", 3, {"a": "x" * MOST_CHARACTERS}])
def test_what_is_no_output_is_refused(output: Any) -> None:
    with pytest.raises(ValueError, match="output"):
        completeness_of(output)


def test_the_prompt_has_the_sections_and_says_what_is_missing() -> None:
    assert context_message({}) == ""
    assert '## a\n{"k":1}' in context_message({"a": {"k": 1}})
    assert guidance([], {"Tone": ""}) == ""
    told = guidance(["b", "c"], {"Tone": "warm"})
    assert "Tone: warm" in told and "Degraded sections: b, c." in told
