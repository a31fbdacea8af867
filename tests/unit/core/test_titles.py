"""A title is short, one line, and of the message's own words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.turns import TITLE_CHARACTERS, title_of


@pytest.mark.parametrize(
    ("message", "title"),
    [
        ("Refund order 1001", "Refund order 1001"),
        ("  Please\n\tlook at order 1001 and tell me what happened  ", "Please look at order 1001 and"),
        ("x" * 61, "x" * 59 + "…"),
        ("x" * 60, "x" * 60),
        ("first " + "y" * 100, "first " + "y" * 53 + "…"),
        (" \n ", ""),
        ("\u2800 \u115f", ""),
        ("a\x00b", "a\ufffdb"),
    ],
)
def test_a_title_is_the_first_words_of_the_message(message: str, title: str) -> None:
    assert title_of(message) == title


@given(st.text(max_size=2_000))
def test_a_title_is_one_short_line_that_can_be_stored(message: str) -> None:
    title = title_of(message)
    assert len(title) <= TITLE_CHARACTERS and len(title.split()) <= 6
    assert title == " ".join(title.split()) and "\x00" not in title
    title.encode()
