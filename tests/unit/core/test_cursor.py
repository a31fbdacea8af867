"""Cursors as text, and the order of live entries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.events.stream import LOST_EPOCH, Cursor, entry_order, parse_cursor

numbers = st.integers(0, 10**18 - 1)


@given(numbers, st.text("0123456789abcdefx", min_size=1, max_size=32), numbers, numbers)
def test_a_cursor_is_read_back_as_it_was_written(seq: int, epoch: str, milliseconds: int, number: int) -> None:
    cursor = Cursor(seq, epoch, f"{milliseconds}-{number}")
    assert parse_cursor(str(cursor)) == cursor


@given(numbers)
def test_a_bare_number_is_a_place_among_the_durable_events(seq: int) -> None:
    assert parse_cursor(str(seq)) == Cursor(seq, LOST_EPOCH)


@pytest.mark.parametrize("bad", ["", "x", "-1", "1.2", "1.e.5", "1.E.1-1", "1.e.1-1 ", "1" * 19, "1.e.1-1.", "٣"])
def test_a_text_that_is_nearly_a_cursor_is_none(bad: str) -> None:
    assert parse_cursor(bad) is None


@given(st.text())
def test_no_text_is_an_error(text: str) -> None:
    assert parse_cursor(text) is None or text.isascii()


def test_entries_are_ordered_by_number_and_not_by_text() -> None:
    ids = ["9-0", "10-0", "10-2", "10-10"]
    assert sorted(ids, key=entry_order) == ids
