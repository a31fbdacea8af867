"""Text from outside, made storable, countable and short."""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from perdure.contracts.messages import PREVIEW_CHARACTERS

CHARACTERS_A_TOKEN = 4
"""The estimate where no provider counted (S2-13)."""
_UNSEEN = frozenset("\u115f\u1160\u3164\uffa0\u2800")
"""Letters and signs by their category, which are drawn as nothing: fillers of Hangul, the empty Braille pattern."""


def clean(text: str) -> str:
    """`text` without NUL and lone surrogates, which Postgres and UTF-8 refuse; each becomes U+FFFD."""
    if "\x00" in text:
        text = text.replace("\x00", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def is_clean(text: str) -> bool:
    """Whether `text` can be stored as it is."""
    return clean(text) == text


def is_blank(text: str) -> bool:
    """Whether a reader would see nothing of `text`: no letter, digit, punctuation or sign is in it."""
    return not any(unicodedata.category(each)[0] in "LNPS" and each not in _UNSEEN for each in text)


def preview(text: str) -> str:
    """The start of `text`, for references inside a workflow."""
    return text if len(text) <= PREVIEW_CHARACTERS else text[: PREVIEW_CHARACTERS - 1] + "…"


def unabridged(text: str, quoted: Iterable[str]) -> str:
    """`text`, which quotes the starts of these one after the other, with the whole of each in its place."""
    done, rest = "", text
    for each in filter(None, quoted):
        before, start, after = rest.partition(preview(each))
        if start:
            done, rest = done + before + each, after
    return done + rest


def without_word(text: str, word: str) -> str:
    """`text` without each `word` in it that stands alone, and the marks behind it; as it is where none does."""
    left, found = re.subn(rf"(?<!\S){re.escape(word)}(?![\w-])[.,;:!?]*(?:\s+|$)", "", text) if word else (text, 0)
    return left.strip() if found else text


def estimated_tokens(text: str) -> int:
    """About how many tokens `text` is."""
    return -(-len(text) // CHARACTERS_A_TOKEN)


# --- Text from models, users and tools, made harmless for a terminal or a page, and honest for a reader.
# Control characters (ANSI sequences begin with one), text that runs backwards and characters that show nothing are
# written as escapes. What a reviewer reads is then exactly what will run.

_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters that show nothing."""
_SELECTORS = range(0xE0100, 0xE01F0)
"""Variation selectors of which any number may follow a letter, unseen."""
_KEPT = frozenset("\n\t")
_PLAIN = re.compile(r"[\n\t\x20-\x7e]*")
_GAP = re.compile(r"(?:\r\n|[ \t\n])+")


def printable(text: str) -> str:
    """`text` with everything unseen written as JSON would escape it, `\\u202e`; line ends and tabs stay."""
    if _PLAIN.fullmatch(text):
        return text
    return "".join(_escape(character) if _is_hidden(character) else character for character in text)


def pieces(text: str) -> Iterator[tuple[str, bool]]:
    """`text` in runs, each printable, with whether it stands for characters that nobody would see."""
    if _PLAIN.fullmatch(text):
        yield text, False
        return
    for hidden, run in groupby(text, _is_hidden):
        yield "".join(_escape(character) if hidden else character for character in run), hidden


def one_line(text: str, most: int | None = 200) -> str:
    """`text` for a cell or a status line: no line ends, not too long."""
    return printable(flat(text, most))


def flat(text: str, most: int | None = None) -> str:
    """The same as it was written, what cannot be seen included."""
    whole = _GAP.sub(" ", text).strip(" ")
    return whole if most is None or len(whole) <= most else whole[: most - 1] + "…"


def cut(text: str, most: int) -> str:
    """The beginning of a text that is too long, and how much of it is missing."""
    return text if len(text) <= most else f"{text[:most]}… {len(text) - most:,} more characters"


def pretty_json(value: Any) -> str:
    """`value` as indented JSON that shows all that is in it."""
    return printable(json.dumps(value, indent=2, ensure_ascii=False))


def _is_hidden(character: str) -> bool:
    if character in _KEPT:
        return False
    hidden = unicodedata.category(character) in _HIDDEN_CATEGORIES
    return hidden or character in _BLANK or ord(character) in _SELECTORS


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in zip(units[::2], units[1::2], strict=True))


def size(count: int) -> str:
    """A length in bytes as a person reads it: `1 GB`, `20 MB`, `1.5 KB`."""
    for name, unit in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if count >= unit:
            return f"{count / unit:.4g} {name}"
    return f"{count} byte" if count == 1 else f"{count} bytes"


# --- Times and lengths of time as people are told them.


def format_time(at: datetime) -> str:
    """For example `2026-03-01 00:00:00 UTC`."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def format_time_left(until: datetime, now: datetime) -> str:
    """How long until then: `6 d 23 h`, `59 min`; empty where it is over."""
    return span(until - now) if until > now else ""


def format_age(at: datetime, now: datetime) -> str:
    """How long since then; a clock that is ahead of this one counts as now."""
    return span(max(now - at, timedelta(0)))


def span(length: timedelta) -> str:
    """`12 s`, `59 min`, `3 h 5 min`, `6 d 23 h`."""
    seconds = int(length.total_seconds())
    minutes, hours = seconds // 60, seconds // 3600
    if minutes < 1:
        return f"{seconds} s"
    if hours < 1:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"
