"""What a reviewer reads is what there is: nothing unseen reaches the terminal."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.text import cut, one_line, pretty_json, printable

HOSTILE = {
    "an ANSI colour": ("\x1b[31mred\x1b[0m", "\\u001b[31mred\\u001b[0m"),
    "a window title": ("\x1b]0;pwned\x07", "\\u001b]0;pwned\\u0007"),
    "an 8-bit CSI": ("\x9b2J", "\\u009b2J"),
    "a carriage return that overwrites": ("pay 9999\rpay 1", "pay 9999\\u000dpay 1"),
    "a backspace": ("ab\x08c", "ab\\u0008c"),
    "text that runs backwards": ("user\u202egpj.exe", "user\\u202egpj.exe"),
    "an isolate": ("\u2066x\u2069", "\\u2066x\\u2069"),
    "a zero-width space": ("ad\u200bmin", "ad\\u200bmin"),
    "a soft hyphen": ("ad\u00admin", "ad\\u00admin"),
    "tag letters that only a model reads": ("ok\U000e0041", "ok\\udb40\\udc41"),
    "a hidden selector": ("ok\U000e0101", "ok\\udb40\\udd01"),
    "a blank letter": ("a\u3164b", "a\\u3164b"),
    "a line separator": ("a\u2028b", "a\\u2028b"),
    "half a character": ("a\ud800b", "a\\ud800b"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_seen_is_written_as_an_escape(name: str) -> None:
    text, shown = HOSTILE[name]
    assert printable(text) == shown


def test_what_can_be_seen_stays_as_it_is() -> None:
    text = "Grüße, 世界 — naïve café\n\tعربي ✓ 🙂"
    assert printable(text) == text


@given(st.text())
def test_nothing_unseen_is_ever_left_and_nothing_is_escaped_twice(text: str) -> None:
    shown = printable(text)
    assert not [c for c in shown if c not in "\n\t" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    assert printable(shown) == shown


@given(st.recursive(st.none() | st.integers() | st.text(), lambda i: st.lists(i) | st.dictionaries(st.text(), i)))
def test_arguments_as_shown_mean_exactly_what_they_are(value: object) -> None:
    assert json.loads(pretty_json(value)) == value


def test_a_cell_is_one_line_and_not_too_long() -> None:
    assert one_line("a\n  b\t\tc") == "a b c"
    assert one_line("x" * 300) == "x" * 199 + "…"


@pytest.mark.parametrize("hidden", ["\u2028", "\x85", "\x1c", "\x0b"])
def test_a_separator_that_cannot_be_seen_does_not_turn_into_a_blank(hidden: str) -> None:
    assert one_line(f"a\r\n{hidden}b") == f"a \\u{ord(hidden):04x}b"


def test_what_is_cut_says_how_much_is_missing() -> None:
    assert cut("x" * 5, 5) == "xxxxx"
    assert cut("x" * 1_505, 5) == "xxxxx… 1,500 more characters"
