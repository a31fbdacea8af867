"""What of a document is shown: at most 1,200 characters, escaped so that they cannot close the block they stand in."""

import re
from collections.abc import Sequence

MOST_CHARACTERS = 1_200
"""Of an excerpt as it is shown, escaped (S2-13)."""
_BEFORE = 200
"""An excerpt from the middle begins at a line's start, at most so far before the word that it is for."""
_WORD = re.compile(r"\w{3,}")
_MOST_WORDS = 48
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})


def escaped(text: str) -> str:
    """`text` without anything that could open or close a tag or an attribute."""
    return text.translate(_ESCAPES)


def words_of(question: str) -> tuple[str, ...]:
    """The words by which an excerpt is chosen."""
    return tuple(dict.fromkeys(match.group() for match in _WORD.finditer(question)))[:_MOST_WORDS]


def excerpt(content: str, words: Sequence[str] = ()) -> str:
    """The beginning of `content`, or where none of the words stands in it, the place where one first does; escaped."""
    text = content.strip()
    start = _start(text, words) if len(text) > MOST_CHARACTERS else 0
    before = "…" if start else ""
    return before + _cut(escaped(text[start : start + MOST_CHARACTERS]), len(before), len(text) - start)


def _start(text: str, words: Sequence[str]) -> int:
    if not words:
        return 0
    found = re.search(r"\b(?:" + "|".join(re.escape(word) for word in words) + ")", text, re.IGNORECASE)
    if found is None or found.start() < MOST_CHARACTERS - _BEFORE:
        return 0
    line = text.rfind("\n", found.start() - _BEFORE, found.start())
    return line + 1 if line >= 0 else found.start()


def _cut(shown: str, taken: int, raw_length: int) -> str:
    """The start of an escaped text, with no half of an escape at its end, and a sign where something is left out."""
    if len(shown) + taken <= MOST_CHARACTERS and raw_length <= MOST_CHARACTERS:
        return shown
    kept = shown[: MOST_CHARACTERS - taken - 1]
    opened = kept.rfind("&")
    if opened > kept.rfind(";"):
        kept = kept[:opened]
    return kept.rstrip() + "…"
