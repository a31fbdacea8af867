"""The skip gates (S1-31 to S1-33), the third condition of gate A included."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.context_assembly import Bundle
from perdure.core.calls.context_assembly import Gate, Now, gate, slice_hash, upstream_of

NOW = Now("slice", "fed")


def kept(completeness: float, slice_hash: str = "earlier", upstream: str = "fed") -> Bundle:
    """An earlier output."""
    return Bundle(
        tool="t", turn_id="1", completeness=completeness, slice_hash=slice_hash, upstream=upstream, digest="d"
    )


@pytest.mark.parametrize(
    ("before", "threshold", "becomes"),
    [
        (None, 0.4, Gate.RUN),
        (kept(0.9, upstream="other"), 0.4, Gate.RUN),  # the condition that the sample code lacks
        (kept(0.9, "slice", upstream="other"), 0.4, Gate.RUN),
        (kept(0.0, "slice"), 0.4, Gate.SAME_SLICE),
        (kept(1.0, "slice"), 0.4, Gate.SAME_SLICE),
        (kept(0.4), 0.4, Gate.COMPLETE),
        (kept(0.39), 0.4, Gate.RUN),
        (kept(0.39), 0.3, Gate.COMPLETE),
        (kept(0.9), 1.0, Gate.RUN),
        (kept(0.0), 0.0, Gate.COMPLETE),
    ],
)
def test_the_table_of_gates(before: Bundle | None, threshold: float, becomes: Gate) -> None:
    assert gate(before, NOW, threshold) is becomes


@given(st.floats(0, 1), st.floats(0, 1), st.booleans(), st.booleans())
def test_only_what_is_fed_the_same_is_used_again(score: float, threshold: float, same: bool, fed: bool) -> None:
    before = kept(score, "slice" if same else "earlier", "fed" if fed else "other")
    assert (gate(before, NOW, threshold) is not Gate.RUN) == (fed and (same or score >= threshold))


def test_what_feeds_a_tool_is_all_of_it() -> None:
    fed = upstream_of("basis", "slice", {"a": "1", "b": "2"})
    assert fed == upstream_of("basis", "slice", {"b": "2", "a": "1"})
    others = [
        upstream_of("new basis", "slice", {"a": "1", "b": "2"}),
        upstream_of("basis", "new slice", {"a": "1", "b": "2"}),
        upstream_of("basis", None, {"a": "1", "b": "2"}),
        upstream_of("basis", "slice", {"a": "1", "b": "3"}),
        upstream_of("basis", "slice", {"a": "1"}),
    ]
    assert len({fed, *others}) == 6


@pytest.mark.parametrize(
    ("said", "same"),
    [
        (["I cannot sleep", "Thanks!"], True),
        (["i  cannot SLEEP ", "thank you."], True),
        (["I cannot sleep", "", "  "], True),
        (["I cannot sleep", "thanks, but no"], False),
        (["Thanks!", "I can sleep"], False),
        ([], False),
        (["I cannot sleep", "I cannot sleep"], False),
    ],
)
def test_an_acknowledgement_changes_no_slice(said: list[str], same: bool) -> None:
    acknowledgements = ("thanks", "thank you")
    assert (slice_hash(said, acknowledgements) == slice_hash(["I cannot sleep"], acknowledgements)) is same


@given(st.lists(st.text(max_size=20), max_size=5), st.text(min_size=1, max_size=20))
def test_every_text_has_a_slice_and_joining_messages_makes_another(said: list[str], text: str) -> None:
    assert len(slice_hash([*said, text])) == 64
    assert slice_hash(["a b", "c"]) != slice_hash(["a", "b c"])
