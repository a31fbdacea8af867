"""Hides the values of secrets in a text, also in encoded forms."""

import re
from base64 import b64encode
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from perdure.core.text import clean

MASK: Final = "…"
MIN_SECRET_CHARACTERS: Final = 4
"""A shorter secret is not sought. It would be in too many words."""
_BACKSLASHES_OR_ONE = re.compile(r"\\+|.", re.DOTALL)
_SHORT_ESCAPES = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}
_MAX_FORM_CHARACTERS = 128
"""A character is encoded as at most so many: a backslash can be eight times eight backslashes with `u005c`."""
_BASE64_FORMS = {"+": "(?:[+-]|%2B)", "/": r"(?:\\?/|_|%2F)"}


def without_secrets(text: str, secrets: Collection[str], limit: int | None = None) -> str:
    """Returns `text` without these values, also percent-encoded, in hex or base64, and escaped as in JSON or Python.

    Space around a value does not count. Values of fewer than MIN_SECRET_CHARACTERS stay. With a `limit`, the result has
    at most as many characters, and only about as many are read: a long text costs little. It ends with no part of a
    value.
    """
    values = sorted(filter(_is_sought, {clean(secret).strip() for secret in secrets}), key=len, reverse=True)
    patterns = [pattern for value in values for pattern in _patterns(value)]
    if limit is not None and len(text) > limit and values:
        text = text[: _end_of_kept(text, patterns, limit, _MAX_FORM_CHARACTERS * len(values[0]))]
    for pattern in patterns:
        text = pattern.sub(MASK, text)
    return text if limit is None else text[:limit]


def _end_of_kept(text: str, patterns: Sequence[re.Pattern[str]], limit: int, most: int) -> int:
    """Returns the first place from `limit` that is within no secret. None of them is longer than `most`."""
    read, end = text[: limit + most], limit
    for _ in patterns:  # the end of one can be within another
        ends = [match.end() for each in patterns for match in each.finditer(read) if match.start() < end < match.end()]
        if not ends:
            break
        end = max(ends)
    return end


def _patterns(value: str) -> Iterator[re.Pattern[str]]:
    """Yields the patterns of a value and its encoded forms."""
    yield re.compile(re.escape(value))
    if not value.isascii() or not value.isalnum():
        yield re.compile("".join(map(_any_form, _BACKSLASHES_OR_ONE.findall(value))))
    yield re.compile(value.encode().hex(), re.IGNORECASE)
    yield _base64_of(value)


def _is_sought(value: str) -> bool:
    return len(value) >= MIN_SECRET_CHARACTERS


def _any_form(character: str) -> str:
    """Returns a pattern for a character, or several backslashes, and its encoded forms. Each of them is bounded."""
    if character.isascii() and character.isalnum():
        return character
    if character[0] == "\\":
        return rf"(?>(?i:%5c)|\\{{1,8}}u005c|\\){{{len(character)},{8 * len(character)}}}"
    octets, units = character.encode(), re.findall("....", character.encode("utf-16-be").hex())
    forms = [
        "(?i:" + "".join(f"%{octet:02x}" for octet in octets) + ")",
        "(?i:" + "".join(rf"\\{{1,8}}u{unit}" for unit in units) + ")",
        "(?i:" + "".join(rf"\\{{1,8}}x{octet:02x}" for octet in octets) + ")",
        rf"(?i:\\{{1,8}}(?:x{ord(character):02x}|U{ord(character):08x}))",
        rf"\\{{1,8}}{_SHORT_ESCAPES.get(character, re.escape(character))}",
        re.escape(character),
    ]
    if character == " ":
        forms.append(r"\+")
    return f"(?>{'|'.join(forms)})"


def _base64_of(value: str) -> re.Pattern[str]:
    """Returns a pattern for the value in base64 of either alphabet, also as a part of a longer text."""
    octets, cores = value.encode(), []
    for before in range(3):
        encoded = b64encode(bytes(before) + octets).decode()
        core = encoded[(before * 8 + 5) // 6 : (before + len(octets)) * 8 // 6]
        cores.append("".join(_BASE64_FORMS.get(each, each) for each in core))
    return re.compile(rf"[A-Za-z0-9+/_-]?(?:{'|'.join(cores)})[A-Za-z0-9+/_-]?={{0,2}}")
