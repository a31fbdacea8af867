"""Text from outside, made storable, countable and short."""

import re
import unicodedata
from collections.abc import Iterable

from contracts.messages import PREVIEW_CHARACTERS

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
