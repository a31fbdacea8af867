"""Makes external text storable, countable, short and safe to display."""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from perdure.contracts.messages import PREVIEW_CHARACTERS

CHARACTERS_A_TOKEN = 4
"""The estimate if no provider counted the tokens."""
_INVISIBLE_LETTERS = frozenset("\u115f\u1160\u3164\uffa0\u2800")
"""Letters and signs by category that are invisible: Hangul fillers and the empty Braille pattern."""
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_SELECTORS = range(0xE0100, 0xE01F0)
"""Invisible variation selectors; any number of them can follow a letter."""
_KEPT = frozenset("\n\t")
_PLAIN = re.compile(r"[\n\t\x20-\x7e]*")
_GAP = re.compile(r"(?:\r\n|[ \t\n])+")


def clean(text: str) -> str:
    """Returns `text` without NUL and lone surrogates, which Postgres and UTF-8 reject; each becomes U+FFFD."""
    if "\x00" in text:
        text = text.replace("\x00", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def is_clean(text: str) -> bool:
    """Returns whether `text` can be stored unchanged."""
    return clean(text) == text


def is_blank(text: str) -> bool:
    """Returns whether `text` looks empty: it contains no visible letter, digit, punctuation or sign."""
    return not any(unicodedata.category(each)[0] in "LNPS" and each not in _INVISIBLE_LETTERS for each in text)


def preview(text: str) -> str:
    """Returns the start of `text`, for references in a workflow."""
    return text if len(text) <= PREVIEW_CHARACTERS else text[: PREVIEW_CHARACTERS - 1] + "…"


def restore_previews(text: str, quoted: Iterable[str]) -> str:
    """Returns `text` with the quoted previews of `quoted`, in that order, replaced by the complete texts."""
    done, rest = "", text
    for each in filter(None, quoted):
        before, start, after = rest.partition(preview(each))
        if start:
            done, rest = done + before + each, after
    return done + rest


def without_word(text: str, word: str) -> str:
    """Returns `text` without each separate `word` and the punctuation after it, or unchanged if there is none."""
    left, found = re.subn(rf"(?<!\S){re.escape(word)}(?![\w-])[.,;:!?]*(?:\s+|$)", "", text) if word else (text, 0)
    return left.strip() if found else text


def estimated_tokens(text: str) -> int:
    """Returns an estimate of the tokens in `text` from its length, rounded up."""
    return -(-len(text) // CHARACTERS_A_TOKEN)


def escape_terminal(text: str) -> str:
    """Returns `text` with invisible characters as JSON escapes (`\\u202e`); line breaks and tabs stay. Text from
    models, users and tools becomes safe for terminals and pages and unambiguous for readers. Control characters (which
    start ANSI sequences), text in reverse direction and invisible characters are written as escapes. So a reviewer
    reads exactly what will run."""
    if _PLAIN.fullmatch(text):
        return text
    return "".join(_escape(character) if _is_hidden(character) else character for character in text)


def printable_runs(text: str) -> Iterator[tuple[str, bool]]:
    """Yields `text` in printable runs, each with whether it represents invisible characters."""
    if _PLAIN.fullmatch(text):
        yield text, False
        return
    for hidden, run in groupby(text, _is_hidden):
        yield "".join(_escape(character) if hidden else character for character in run), hidden


def one_line(text: str, limit: int | None = 200) -> str:
    """Returns `text` for a cell or a status line, without line breaks and limited in length."""
    return escape_terminal(flat(text, limit))


def flat(text: str, limit: int | None = None) -> str:
    """Returns `text` as `one_line` does, but without escaping invisible characters."""
    line = _GAP.sub(" ", text).strip(" ")
    return line if limit is None or len(line) <= limit else line[: limit - 1] + "…"


def truncate(text: str, limit: int) -> str:
    """Returns `text`, or its start and the number of missing characters if it is too long."""
    return text if len(text) <= limit else f"{text[:limit]}… {len(text) - limit:,} more characters"


def without_userinfo(text: str) -> str:
    """Returns `text` with `***` for every user name and password of a URL in it, also if the URL is malformed.

    Everything before the last `@` is replaced, except the first scheme.
    """
    before, at, after = text.rpartition("@")
    scheme, colon, _ = before.partition("://")
    return f"{scheme if colon else ''}{colon}***@{after}" if at else text


def pretty_json(value: Any) -> str:
    """Returns `value` as indented JSON with invisible characters escaped."""
    return escape_terminal(json.dumps(value, indent=2, ensure_ascii=False))


def _is_hidden(character: str) -> bool:
    if character in _KEPT:
        return False
    hidden = unicodedata.category(character) in _HIDDEN_CATEGORIES
    return hidden or character in _INVISIBLE_LETTERS or ord(character) in _SELECTORS


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in zip(units[::2], units[1::2], strict=True))


def format_size(count: int) -> str:
    """Returns a number of bytes for people: `1 GB`, `20 MB`, `1.5 KB`."""
    for name, unit in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if count >= unit:
            return f"{count / unit:.4g} {name}"
    return f"{count} byte" if count == 1 else f"{count} bytes"


def format_time(at: datetime) -> str:
    """Returns a time in UTC, such as `2026-03-01 00:00:00 UTC`."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def format_time_left(until: datetime, now: datetime) -> str:
    """Returns the time until `until`, such as `6 d 23 h` or `59 min`; empty if it has passed."""
    return duration_text(until - now) if until > now else ""


def format_age(at: datetime, now: datetime) -> str:
    """Returns the time since `at`; a time in the future counts as now."""
    return duration_text(max(now - at, timedelta(0)))


def duration_text(duration: timedelta) -> str:
    """Returns a duration such as `12 s`, `59 min`, `3 h 5 min` or `6 d 23 h`."""
    seconds = int(duration.total_seconds())
    minutes, hours = seconds // 60, seconds // 3600
    if minutes < 1:
        return f"{seconds} s"
    if hours < 1:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"
