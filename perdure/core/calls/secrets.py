"""Hides the values of secrets in a text, also in encoded forms."""

import re
from base64 import b64encode
from collections.abc import Collection
from typing import Final

from perdure.core.text import clean

MASK: Final = "…"
MIN_SECRET_CHARACTERS: Final = 4
"""A shorter secret is not sought. It would be in too many words."""
_BACKSLASHES_OR_ONE = re.compile(r"\\+|.", re.DOTALL)
_SHORT_ESCAPES = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}
_BASE64_FORMS = {"+": "(?:[+-]|%2B)", "/": r"(?:\\?/|_|%2F)"}


def without_secrets(text: str, secrets: Collection[str]) -> str:
    """Returns `text` without these values, also percent-encoded, in base64, and escaped as in JSON or Python.

    Space around a value does not count. Values of fewer than MIN_SECRET_CHARACTERS stay.
    """
    values = {clean(secret).strip() for secret in secrets}
    for value in sorted(filter(_is_sought, values), key=len, reverse=True):
        text = text.replace(value, MASK)
        if not value.isascii() or not value.isalnum():
            text = re.sub("".join(map(_any_form, _BACKSLASHES_OR_ONE.findall(value))), MASK, text)
        text = _base64_of(value).sub(MASK, text)
    return text


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
