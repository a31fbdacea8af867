"""Text from outside becomes text that can be stored."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.messages import PREVIEW_CHARACTERS
from perdure.core.text import clean, estimated_tokens, is_blank, is_clean, preview, unabridged, without_word

hostile = st.text(st.characters(codec=None))
"""Every code point, surrogates and NUL included."""


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("", ""),
        ("plain", "plain"),
        ("a\x00b", "a\ufffdb"),
        ("\ud83d", "\ufffd"),
        ("\ude00x", "\ufffdx"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\x00\ud83d", "\ufffd\ufffd"),
        ("snow ☃ \U0001f600", "snow ☃ \U0001f600"),
    ],
)
def test_nul_and_half_characters_are_replaced(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned
    assert is_clean(text) is (text == cleaned)


@given(hostile)
def test_clean_text_can_be_stored_and_cleaning_again_changes_nothing(text: str) -> None:
    cleaned = clean(text)
    cleaned.encode()
    assert "\x00" not in cleaned
    assert clean(cleaned) == cleaned
    assert is_clean(cleaned)


@pytest.mark.parametrize(
    ("text", "blank"),
    [
        ("", True),
        (" \t\r\n\u00a0\u3000", True),
        ("\u200b\u2060\ufeff\u00ad", True),
        ("\u202e\u2066", True),
        ("\u3164\u115f\u1160\uffa0\u2800", True),
        ("\u0301\ufe0f", True),
        ("\u200bno", False),
        ("-", False),
        ("7", False),
        ("\U0001f44e", False),
        ("不", False),
    ],
)
def test_text_of_which_nothing_is_seen_is_blank(text: str, blank: bool) -> None:
    assert is_blank(text) is blank


@given(st.text(max_size=3 * PREVIEW_CHARACTERS))
def test_a_preview_is_the_start_and_never_longer_than_it_may_be(text: str) -> None:
    short = preview(text)
    assert len(short) <= PREVIEW_CHARACTERS
    assert short == text if len(text) <= PREVIEW_CHARACTERS else text.startswith(short[:-1]) and short[-1] == "…"


@pytest.mark.parametrize(("length", "tokens"), [(0, 0), (1, 1), (4, 1), (5, 2), (400, 100)])
def test_four_characters_are_about_a_token(length: int, tokens: int) -> None:
    assert estimated_tokens("x" * length) == tokens


LONG = st.builds(
    lambda text, most: (text * most)[:most],
    st.text(min_size=1, max_size=3),
    st.integers(PREVIEW_CHARACTERS - 2, PREVIEW_CHARACTERS + 2),
)


@given(st.lists(LONG, max_size=4))
def test_what_quotes_the_starts_of_several_gets_the_whole_of_each(said: list[str]) -> None:
    told = "".join(f"<{preview(each)}>" for each in said)
    assert unabridged(told, said) == "".join(f"<{each}>" for each in said)


def test_what_is_not_quoted_or_is_gone_changes_nothing() -> None:
    assert unabridged("a note", ["", "x" * 500]) == "a note"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Plot a by b #go", "Plot a by b"),
        ("#go Plot a by b", "Plot a by b"),
        ("Plot a #go by b", "Plot a by b"),
        ("Plot a by b\n#go.", "Plot a by b"),
        ("#go, Plot a #go", "Plot a"),
        ("#go", ""),
        ("Plot #gone by x#go or #go-on", "Plot #gone by x#go or #go-on"),
        ("  Plot a  ", "  Plot a  "),
    ],
)
def test_a_word_is_taken_out_wherever_it_stands_alone(text: str, left: str) -> None:
    assert without_word(text, "#go") == left
    assert without_word(text, "") == text
