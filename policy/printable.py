"""Text from models, users and tools, made harmless for a terminal or a page, and honest for a reader.

Control characters (ANSI sequences begin with one), text that runs backwards and characters that show nothing are
written as escapes. What a reviewer reads is then exactly what will run.
"""

import json
import re
import unicodedata
from collections.abc import Iterator
from itertools import groupby
from typing import Any

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
