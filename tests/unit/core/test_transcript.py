"""What of a broken-off turn stays in its conversation."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.calls import CallState
from perdure.core.turns import Kept, Round, keep_rounds, told_of, words_only

TWO = Round("m", ("a", "b"), {"a": "ta"})


@pytest.mark.parametrize(
    ("case", "states", "kept"),
    [
        (Round("m", ("a",), {}), {"a": CallState.PLANNED}, ()),
        (Round("m", ("a",), {}), {"a": CallState.DENIED}, ()),
        (Round("m", ("a",), {"a": "ta"}), {"a": CallState.DENIED}, (Kept(("m", "ta"), ()),)),
        (TWO, {"a": CallState.DONE, "b": CallState.PLANNED}, (Kept(("m", "ta"), ("b",)),)),
        (Round("m", ("a",), {}), {"a": CallState.OUTCOME_UNKNOWN}, (Kept(("m",), ("a",)),)),
        (Round("m", ("a",), {}), {}, ()),
        (Round("m", ("a",), {}, is_open=True), {"a": CallState.PLANNED}, (Kept(("m",), ("a",)),)),
        (TWO, {"a": CallState.DENIED, "b": CallState.PLANNED}, ()),
        (replace(TWO, is_open=True), {"a": CallState.DENIED, "b": CallState.PLANNED}, (Kept(("m", "ta"), ("b",)),)),
    ],
)
def test_a_round_stays_where_it_did_something_is_answered_whole_or_was_open_at_the_end(
    case: Round, states: dict[str, CallState], kept: tuple[Kept, ...]
) -> None:
    assert keep_rounds([case], states) == kept


@given(st.dictionaries(st.sampled_from("abcd"), st.sampled_from(CallState)), st.sets(st.sampled_from("abcd")))
def test_every_call_of_a_kept_round_has_one_answer_and_nothing_done_is_forgotten(
    states: dict[str, CallState], answered: set[str]
) -> None:
    whole = Round("m", tuple("abcd"), {call: f"t{call}" for call in answered})
    kept = keep_rounds([whole], states)
    if kept:
        assert len(kept[0].message_ids) - 1 + len(kept[0].unanswered) == len(whole.calls)
    else:
        assert CallState.DONE not in states.values()


def test_a_call_that_may_have_happened_is_not_told_as_not_run() -> None:
    assert told_of(CallState.RESERVED, "the approval is rejected")[0] == "not_known"
    assert told_of(CallState.PLANNED, "the approval is rejected") == ("denied", "the approval is rejected")
    assert told_of(CallState.PLANNED)[0] == told_of(None)[0] == "not_run"


def test_what_was_said_with_a_round_that_did_nothing_stays_without_its_calls() -> None:
    silent = Round("silent", ("a",), {})
    said = Round("said", ("b",), {}, has_text=True)
    done = Round("done", ("c",), {}, has_text=True)
    kept = keep_rounds([silent, said, done], {"c": CallState.DONE})
    assert words_only([silent, said, done], kept) == ("said",)
