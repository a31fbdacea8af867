"""Phases of tools: what runs side by side, what waits, and what is no order at all (S1-21 to S1-24)."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.calls.context_assembly import left_out, phases

SAMPLE = {
    "client_signal": (),
    "provider_genome": (),
    "patient_context": (),
    "therapeutic_fit": ("client_signal", "provider_genome"),
}
NAMES = [f"t{number}" for number in range(8)]


@pytest.mark.parametrize(
    ("dependencies", "grouped"),
    [
        ({}, ()),
        ({"a": ()}, (("a",),)),
        (SAMPLE, (("client_signal", "provider_genome", "patient_context"), ("therapeutic_fit",))),
        (
            {**SAMPLE, "narrative": ()},
            (("client_signal", "provider_genome", "patient_context", "narrative"), ("therapeutic_fit",)),
        ),
        ({"c": ("b",), "b": ("a",), "a": ()}, (("a",), ("b",), ("c",))),
        ({"b": ("a",)}, (("b",),)),
        ({"b": ("a", "a")}, (("b",),)),
    ],
)
def test_the_table_of_groups(dependencies: dict[str, tuple[str, ...]], grouped: tuple[tuple[str, ...], ...]) -> None:
    assert phases(dependencies) == grouped


@pytest.mark.parametrize(
    ("dependencies", "cycle"),
    [
        ({"a": ("a",)}, "a -> a"),
        ({"a": ("b",), "b": ("a",)}, "a -> b -> a"),
        ({"x": (), "a": ("b", "x"), "b": ("c",), "c": ("a",), "d": ("a",)}, "a -> b -> c -> a"),
        ({"a": ("b",), "b": ("c",), "c": ("b",)}, "b -> c -> b"),
    ],
)
def test_a_cycle_is_named(dependencies: dict[str, tuple[str, ...]], cycle: str) -> None:
    with pytest.raises(ValueError, match=f"^cycle in pipeline: {cycle}$"):
        phases(dependencies)


@given(st.dictionaries(st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), max_size=3).map(tuple)))
def test_a_group_needs_only_what_is_before_it_and_begins_as_early_as_it_can(
    dependencies: dict[str, tuple[str, ...]],
) -> None:
    try:
        grouped = phases(dependencies)
    except ValueError as error:
        names = str(error).partition(": ")[2].split(" -> ")
        assert names[0] == names[-1] and len(names) > 1
        assert all(later in dependencies[name] for name, later in pairwise(names))
        return
    assert sorted(name for group in grouped for name in group) == sorted(dependencies)
    place = {name: number for number, group in enumerate(grouped) for name in group}
    for name, needed in dependencies.items():
        assert place[name] == max((place[each] + 1 for each in needed if each in place), default=0)


def test_a_list_that_leaves_out_a_dependency_is_told() -> None:
    assert left_out(["therapeutic_fit", "client_signal"], SAMPLE) == (("therapeutic_fit", "provider_genome"),)
    assert left_out(SAMPLE, SAMPLE) == ()
