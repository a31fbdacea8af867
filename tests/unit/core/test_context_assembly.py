"""Context assembly: its phases, what it is given, what counts and what is skipped."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.contracts.context_assembly import Bundle
from perdure.core.calls import context_assembly
from perdure.core.calls.context_assembly import (
    AttemptFault,
    Reuse,
    completeness_of,
    group_phases,
    is_retried,
    merge_arguments,
    slice_hash,
)

Values = dict[str, Any]
VALUES = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3), max_size=4)


@given(VALUES, st.lists(st.sampled_from("abcd")), VALUES, VALUES)
def test_the_callers_arguments_come_first(defaults: Values, inject: list[str], outputs: Values, caller: Values) -> None:
    injected = {key: value for key, value in outputs.items() if key in inject}
    assert merge_arguments(defaults, inject, outputs, caller) == {**defaults, **injected, **caller}


def test_merging_does_not_change_the_defaults_of_a_later_call() -> None:
    defaults: dict[str, Any] = {"filter": {"ids": [1]}}
    nested: Any = merge_arguments(defaults, (), {}, {})["filter"]
    nested["ids"].append(2)
    assert merge_arguments(defaults, (), {}, {}) == {"filter": {"ids": [1]}}
    assert merge_arguments({"a": 1}, ("a",), {"a": None}, {}) == {"a": None}, "nothing is a value as well"


def test_later_outputs_override_earlier_ones_and_completeness_is_between_0_and_1() -> None:
    said = [{}, {"completeness": 0}, {"completeness": 1}, {"completeness": 0.4}]
    assert [completeness_of(output) for output in said] == [0.0, 0.0, 1.0, 0.4]
    assert context_assembly.merge_outputs([{"a": 1, "completeness": 1}, {"a": 2, "b": 3}]) == {"a": 2, "b": 3}


@pytest.mark.parametrize("said", [float("nan"), float("inf"), -0.01, -1, 1.0001, 2, "0.5", None, True, [0.5], 10**400])
def test_an_invalid_completeness_is_refused(said: Any) -> None:
    with pytest.raises(ValueError) as refused:
        completeness_of({"completeness": said})
    assert len(str(refused.value)) < 140


@pytest.mark.parametrize("output", [None, [], "text", 3, {"a": "x" * context_assembly.MAX_CONTEXT_CHARACTERS}])
def test_an_invalid_output_is_refused(output: Any) -> None:
    with pytest.raises(ValueError):
        completeness_of(output)


def test_the_prompt_has_the_sections_and_says_what_is_missing() -> None:
    assert context_assembly.context_message({}) == ""
    assert '## a\n{"k":1}' in context_assembly.context_message({"a": {"k": 1}})
    assert context_assembly.context_guidance([], {"Tone": ""}) == ""
    told = context_assembly.context_guidance(["b", "c"], {"Tone": "warm"})
    assert "Tone: warm" in told and "b, c" in told


def test_timeouts_and_5xx_are_retried_with_doubled_waits_and_other_faults_are_not() -> None:
    timeouts = (AttemptFault.TIMEOUT, AttemptFault.CONNECT, AttemptFault.READ_TIMEOUT)
    assert all(is_retried(fault, 0) for fault in timeouts)
    assert not any(is_retried(fault, 0) for fault in (AttemptFault.REFUSED, AttemptFault.UNCLASSIFIED))
    statuses = (500, 503, 599, 499, 429, 404, 301)
    assert [status for status in statuses if is_retried(AttemptFault.STATUS, status)] == [500, 503, 599]
    waits = [context_assembly.wait_seconds(0.5, failed) for failed in (1, 2, 3, 4)]
    assert waits == [0.5, 1.0, 2.0, 4.0], "each twice the one before"


@given(st.integers(0, 10))
def test_attempts_are_one_more_than_retries(max_retries: int) -> None:
    attempts = 1
    while context_assembly.should_retry(AttemptFault.TIMEOUT, 0, failed=attempts, max_retries=max_retries):
        attempts += 1
    assert attempts == max_retries + 1
    assert not context_assembly.should_retry(AttemptFault.REFUSED, 0, failed=1, max_retries=max_retries)


FIRST = ("client_signal", "provider_genome", "patient_context")
SAMPLE = {**dict.fromkeys(FIRST, ()), "therapeutic_fit": ("client_signal", "provider_genome")}
Needs = dict[str, tuple[str, ...]]
NAMES = [f"t{number}" for number in range(8)]


@pytest.mark.parametrize(("dependencies", "grouped"), [
    *(({}, ()), ({"a": ()}, (("a",),)), (SAMPLE, (FIRST, ("therapeutic_fit",)))),
    ({**SAMPLE, "narrative": ()}, ((*FIRST, "narrative"), ("therapeutic_fit",))),
    ({"c": ("b",), "b": ("a",), "a": ()}, (("a",), ("b",), ("c",))),
    ({"b": ("a",)}, (("b",),)),
    ({"b": ("a", "a")}, (("b",),)),
])  # fmt: skip
def test_tools_are_grouped_by_their_dependencies(dependencies: Needs, grouped: tuple[tuple[str, ...], ...]) -> None:
    assert group_phases(dependencies) == grouped


@pytest.mark.parametrize(("dependencies", "cycle"), [
    ({"a": ("a",)}, "a -> a"),
    ({"a": ("b",), "b": ("a",)}, "a -> b -> a"),
    ({"x": (), "a": ("b", "x"), "b": ("c",), "c": ("a",), "d": ("a",)}, "a -> b -> c -> a"),
    ({"a": ("b",), "b": ("c",), "c": ("b",)}, "b -> c -> b"),
])  # fmt: skip
def test_a_cycle_is_named(dependencies: Needs, cycle: str) -> None:
    with pytest.raises(ValueError) as refused:
        group_phases(dependencies)
    assert str(refused.value).endswith(f" {cycle}")


@given(st.dictionaries(st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), max_size=3).map(tuple)))
def test_a_group_needs_what_is_before_it_and_begins_as_early_as_it_can(dependencies: Needs) -> None:
    try:
        grouped = group_phases(dependencies)
    except ValueError as error:
        names = [name.split()[-1] for name in str(error).split(" -> ")]
        assert names[0] == names[-1] and len(names) > 1
        assert all(later in dependencies[name] for name, later in pairwise(names))
        return
    assert sorted(name for group in grouped for name in group) == sorted(dependencies)
    place = {name: number for number, group in enumerate(grouped) for name in group}
    for name, needed in dependencies.items():
        assert place[name] == max((place[each] + 1 for each in needed if each in place), default=0)


def test_a_list_that_leaves_out_a_dependency_is_reported() -> None:
    (left_out,) = context_assembly.left_out(["therapeutic_fit", "client_signal"], SAMPLE)
    assert left_out == ("therapeutic_fit", "provider_genome")
    assert context_assembly.left_out(SAMPLE, SAMPLE) == ()


NOW = context_assembly.ToolInputs("slice", "fed")


def earlier_bundle(completeness: float, slice_hash: str = "earlier", upstream: str = "fed") -> Bundle:
    """An earlier output."""
    before = {"completeness": completeness, "slice_hash": slice_hash, "upstream": upstream}
    return Bundle.model_validate({"tool": "t", "turn_id": "1", "digest": "d", **before})


SCORES = st.floats(0, 1)


@given(SCORES, SCORES, st.booleans(), st.booleans())
@example(0.4, 0.4, False, True)
@example(0.9, 0.4, True, False)  # the condition that the sample code lacks
def test_only_a_tool_with_the_same_inputs_is_reused(score: float, threshold: float, same: bool, fed: bool) -> None:
    before = earlier_bundle(score, "slice" if same else "earlier", "fed" if fed else "other")
    again = Reuse.SAME_SLICE if same else Reuse.COMPLETE if score >= threshold else Reuse.RUN
    assert context_assembly.reuse_of(before, NOW, threshold) is (again if fed else Reuse.RUN)
    assert context_assembly.reuse_of(None, NOW, threshold) is Reuse.RUN


def test_a_change_of_any_input_of_a_tool_changes_its_fingerprint() -> None:
    before = {"a": "1", "b": "2"}
    fed = context_assembly.upstream_of("basis", "slice", before)
    assert fed == context_assembly.upstream_of("basis", "slice", {"b": "2", "a": "1"})
    others = [("new basis", "slice", before), ("basis", "new slice", before), ("basis", None, before)]
    others += [("basis", "slice", {"a": "1", "b": "3"}), ("basis", "slice", {"a": "1"})]
    assert len({fed, *(context_assembly.upstream_of(*each) for each in others)}) == 6


def test_an_acknowledgement_keeps_the_slice() -> None:
    def of(*said: str) -> str:
        return slice_hash(said, ("thanks", "thank you"))

    said = "I cannot sleep"
    assert of(said) == of(said, "Thanks!") == of("i  cannot SLEEP ", "thank you.") == of(said, "", "  ")
    assert of(said) not in (of(said, "thanks, but no"), of("Thanks!", "I can sleep"), of(), of(said, said))


@given(st.lists(st.text(max_size=20), max_size=5), st.text(min_size=1, max_size=20))
def test_every_text_has_a_slice_and_joining_messages_makes_another(said: list[str], text: str) -> None:
    assert len(slice_hash([*said, text])) == 64
    assert slice_hash(["a b", "c"]) != slice_hash(["a", "b c"])
