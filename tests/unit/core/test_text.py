"""Texts: shortened, cleaned, printable; lines about a wrong setting or file never show a secret."""

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr, ValidationError

from perdure.contracts.messages import PREVIEW_CHARACTERS
from perdure.core.faults import file_fault, header_fault, named_texts, setting_faults
from perdure.core.text import (
    clean,
    escape_terminal,
    estimated_tokens,
    is_blank,
    is_clean,
    one_line,
    pretty_json,
    preview,
    restore_previews,
    truncate,
    without_userinfo,
    without_word,
)

hostile = st.text(st.characters(codec=None))
"""Every code point, surrogates and NUL included."""
LENGTHS = st.integers(PREVIEW_CHARACTERS - 2, PREVIEW_CHARACTERS + 2)
LONG = st.builds(lambda text, most: (text * most)[:most], st.text(min_size=1, max_size=3), LENGTHS)


@pytest.mark.parametrize(("text", "cleaned"), [
    *((text, text) for text in ("", "plain", "snow ☃ \U0001f600")),
    ("a\x00b", "a\ufffdb"), ("\ud83d", "\ufffd"), ("\ude00x", "\ufffdx"), ("\x00\ud83d", "\ufffd\ufffd"),
    ("\ud83d\ude00", "\U0001f600"),
])  # fmt: skip
def test_nul_and_lone_surrogates_are_replaced(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned
    assert is_clean(text) is (text == cleaned)


@given(hostile)
def test_clean_text_can_be_stored_and_cleaning_again_changes_nothing(text: str) -> None:
    cleaned = clean(text)
    cleaned.encode()
    assert "\x00" not in cleaned
    assert clean(cleaned) == cleaned
    assert is_clean(cleaned)


@pytest.mark.parametrize(("blank", "texts"), [
    (True, ["", " \t\r\n\u00a0\u3000", "\u200b\u2060\ufeff\u00ad", "\u202e\u2066", "\u0301\ufe0f"]),
    (True, ["\u3164\u115f\u1160\uffa0\u2800"]),
    (False, ["\u200bno", "-", "7", "\U0001f44e", "不"]),
])  # fmt: skip
def test_text_without_a_visible_character_is_blank(blank: bool, texts: list[str]) -> None:
    assert [is_blank(text) for text in texts] == [blank] * len(texts)


@given(st.text(max_size=3 * PREVIEW_CHARACTERS))
def test_a_preview_is_the_start_and_never_longer_than_it_may_be(text: str) -> None:
    short = preview(text)
    assert len(short) <= PREVIEW_CHARACTERS
    assert short == text if len(text) <= PREVIEW_CHARACTERS else text.startswith(short[:-1]) and short[-1] == "…"


def test_four_characters_are_estimated_as_one_token() -> None:
    assert [estimated_tokens("x" * length) for length in (0, 1, 4, 5, 400)] == [0, 1, 1, 2, 100]


@given(st.lists(LONG, max_size=4))
def test_a_merged_preview_keeps_the_start_of_each_text(said: list[str]) -> None:
    told = "".join(f"<{preview(each)}>" for each in said)
    assert restore_previews(told, said) == "".join(f"<{each}>" for each in said)
    assert restore_previews("a note", ["", "x" * 500]) == "a note"


@pytest.mark.parametrize(("text", "left"), [
    *((text, "Plot a by b") for text in ("Plot a by b #go", "#go Plot a by b", "Plot a #go by b")),
    *(("Plot a by b\n#go.", "Plot a by b"), ("#go, Plot a #go", "Plot a"), ("#go", "")),
    *((text, text) for text in ("Plot #gone by x#go or #go-on", "  Plot a  ")),
])  # fmt: skip
def test_a_word_is_removed_only_as_a_whole_word(text: str, left: str) -> None:
    assert without_word(text, "#go") == left
    assert without_word(text, "") == text


HOSTILE = {
    "an ANSI colour": ("\x1b[31mred\x1b[0m", "\\u001b[31mred\\u001b[0m"),
    "a window title": ("\x1b]0;pwned\x07", "\\u001b]0;pwned\\u0007"), "an 8-bit CSI": ("\x9b2J", "\\u009b2J"),
    "a carriage return that overwrites": ("pay 9999\rpay 1", "pay 9999\\u000dpay 1"),
    "a backspace": ("ab\x08c", "ab\\u0008c"), "text that runs backwards": ("user\u202egpj.exe", "user\\u202egpj.exe"),
    "an isolate": ("\u2066x\u2069", "\\u2066x\\u2069"), "a zero-width space": ("ad\u200bmin", "ad\\u200bmin"),
    "a soft hyphen": ("ad\u00admin", "ad\\u00admin"),
    "tag letters that only a model reads": ("ok\U000e0041", "ok\\udb40\\udc41"),
    "a hidden selector": ("ok\U000e0101", "ok\\udb40\\udd01"), "a blank letter": ("a\u3164b", "a\\u3164b"),
    "a line separator": ("a\u2028b", "a\\u2028b"), "half a character": ("a\ud800b", "a\\ud800b"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "shown"), HOSTILE.values(), ids=HOSTILE)
def test_invisible_characters_are_written_as_escapes(text: str, shown: str) -> None:
    assert escape_terminal(text) == shown
    seen = "Grüße, 世界 — naïve café\n\tعربي ✓ 🙂"
    assert escape_terminal(seen) == seen


@given(st.text())
def test_no_invisible_character_remains_and_none_is_escaped_twice(text: str) -> None:
    shown = escape_terminal(text)
    assert not [c for c in shown if c not in "\n\t" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    assert escape_terminal(shown) == shown


@given(st.recursive(st.none() | st.integers() | st.text(), lambda i: st.lists(i) | st.dictionaries(st.text(), i)))
def test_displayed_arguments_parse_to_the_same_value(value: object) -> None:
    assert json.loads(pretty_json(value)) == value


def test_a_cell_is_one_line_and_states_how_much_was_cut() -> None:
    assert one_line("a\n  b\t\tc") == "a b c"
    assert one_line("x" * 300) == "x" * 199 + "…"
    for hidden in "\u2028\x85\x1c\x0b":  # a separator that cannot be seen does not turn into a blank
        assert one_line(f"a\r\n{hidden}b") == f"a \\u{ord(hidden):04x}b"
    assert truncate("x" * 5, 5) == "xxxxx"
    assert truncate("x" * 1_505, 5).startswith("xxxxx… 1,500 ")


class Model(BaseModel):
    proxy: str = Field(default="", pattern="^https?://[^/]+$", alias="PROXY")
    size: int = Field(default=1, ge=1, le=9, alias="SIZE")
    secret: SecretStr | None = Field(default=None, max_length=3, alias="SECRET")
    on: bool = Field(default=False, alias="ON")


@pytest.mark.parametrize(("name", "value", "shown"), [
    ("PROXY", "http://user:hush@proxy:3128/x", "proxy:3128/x"), ("PROXY", "user:hush@proxy:3128", "proxy:3128"),
    ("PROXY", f"{'u' * 90}:hush@proxy/", "proxy/"), ("PROXY", "http://user:hu@sh@proxy/x", "proxy/x"),
    ("PROXY", "p" * 81, "p" * 80 + "'…"), ("SIZE", "0", "from 1 to 9"), ("SIZE", "user:hush@9", "***@9"),
    ("SECRET", "hush", "SECRET"), ("ON", "perhaps", "true or false"),
])  # fmt: skip
def test_a_wrong_setting_is_named_with_its_value_unless_it_is_a_secret(name: str, value: str, shown: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Model.model_validate({name: value})
    line = setting_faults(caught.value, Model)
    assert line.startswith(f"{name} ") and shown in line and "\n" not in line
    assert "hu" not in line and "sh@" not in line and "user" not in line


@pytest.mark.parametrize(("text", "expected"), [
    *((same, same) for same in ("", "http://proxy:3128/x", "a://b://c")),
    ("http://u:p@h, https://v:q@i/", "http://***@i/"),
    ("u:p/q#r@h", "***@h"),
])  # fmt: skip
def test_a_url_is_shown_without_user_name_and_password(text: str, expected: str) -> None:
    assert without_userinfo(text) == expected


@pytest.mark.parametrize(("content", "part"), [
    (b"\xff", "0xff"), (b"{", "JSON"), (b"[]", "damaged"), (b'{"a": 5}', "'a'"), (None, "No such file"),
])  # fmt: skip
def test_a_wrong_file_is_named_with_its_fault_and_the_advice(tmp_path: Path, content: bytes | None, part: str) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((OSError, ValueError)) as caught:
        named_texts(path.read_text("utf-8"))
    line = file_fault(path, caught.value, "do this")
    assert line.startswith(f"{path} ") and part in line and line.endswith("; do this")


@pytest.mark.parametrize("fit", ["x", "!~", "eyJ.x"])
def test_only_visible_ascii_is_valid_in_a_header(fit: str) -> None:
    assert not header_fault(fit)
    assert all(header_fault(unfit) for unfit in ("", f"{fit} ", f"{fit}\n", f"\r{fit}", f"{fit}ü", f"\x7f{fit}"))
