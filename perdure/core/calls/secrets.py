"""Hides the values of secrets in a text, also in encoded forms."""

import re
from base64 import b64encode
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import unquote, urlsplit

from perdure.core.text import clean

MASK: Final = "…"
MIN_SECRET_CHARACTERS: Final = 4
"""A shorter secret is not sought. It would be in too many words."""
_BACKSLASHES_OR_ONE = re.compile(r"\\+|.", re.DOTALL)
_SHORT_ESCAPES = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}
_MAX_FORM_CHARACTERS = 128
"""A character is encoded as at most so many: a backslash can be eight times eight backslashes with `u005c`."""
_BREAK = re.compile(r"(?:\s|\\{1,8}(?:[rn]|u000[ad])|%0[ad])+", re.IGNORECASE)
"""White space within an encoded value. Line breaks can be escaped or percent-encoded."""
_BASE64_FORMS = {"+": "(?:[+-]|%2B)", "/": r"(?:\\?/|_|%2F)"}


_SECRET_NAME = re.compile(
    r"^(PERDURE_SECRET_.*|PGPASSWORD)$|(^|_)(PASS|PASSWORD|TOKEN|KEY|SECRET)S?$|_PWDS?$", re.IGNORECASE
)
"""`PWD` alone is the shell's folder."""
_MIN_VARIABLE_CHARACTERS = 8
_WORD = re.compile(r"[a-z]{1,20}")
_SEPARATORS = re.compile(r"[,\s]+")


def secrets_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the values of an environment that look secret: by the variable's name, and the passwords in URLs. Each
    part of a list that is separated by commas or spaces counts too.

    Short values and single words, such as `production`, do not count: they are in many texts.
    """
    named = {value for name, value in environ.items() if _SECRET_NAME.search(name)}
    values = named | {part for value in named for part in _SEPARATORS.split(value)}
    values.update(passwords_in(environ.values()))
    long = (value for value in values if len(value.strip()) >= _MIN_VARIABLE_CHARACTERS)
    return tuple(sorted(value for value in long if not _WORD.fullmatch(value.strip())))


def passwords_in(values: Iterable[str]) -> Iterator[str]:
    """Yields the passwords of those values that are URLs with one."""
    for value in values:
        with suppress(ValueError):  # no URL
            password = urlsplit(value).password if "://" in value else None
            if password:
                yield unquote(password)


def without_secrets(text: str, secrets: Collection[str], limit: int | None = None) -> str:
    """Returns `text` without these values, also percent-encoded, in hex or base64, and escaped as in JSON or Python.
    Hex and base64 can be wrapped into lines, as in MIME and PEM.

    Space around a value does not count. Values of fewer than MIN_SECRET_CHARACTERS stay. With a `limit`, the result has
    at most as many characters, and only about as many are read: a long text costs little. It ends with no part of a
    value.
    """
    values = sorted(filter(_is_sought, {clean(secret).strip() for secret in secrets}), key=len, reverse=True)
    kept = len(text) if limit is None else min(len(text), limit)
    read = text[: kept + _MAX_FORM_CHARACTERS * max(map(len, values), default=0)]
    shown, end = [], 0
    for start, stop in _joined(_places(read, values)):
        if start >= kept:
            break
        shown += [text[end:start], MASK]
        end = stop
    return "".join([*shown, text[end : max(end, kept)]])[:limit]


def _joined(places: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yields these places in order. Those that overlap are one."""
    begin = end = -1
    for start, stop in sorted(places):
        if start < end:
            end = max(end, stop)
            continue
        if end > begin:
            yield begin, end
        begin, end = start, stop
    if end > begin:
        yield begin, end


def _places(text: str, values: Collection[str]) -> Iterator[tuple[int, int]]:
    """Yields the places of these values and of their encoded forms. None is longer than _MAX_FORM_CHARACTERS for each
    character of its value, unless it is wrapped into very short lines."""
    encoded = [pattern for value in values for pattern in _encoded_patterns(value)]
    for pattern in (*encoded, *(pattern for value in values for pattern in _patterns(value))):
        yield from (match.span() for match in pattern.finditer(text))
    lines, starts, moves = _without_breaks(text)
    for pattern in encoded if len(starts) > 1 else ():
        for match in pattern.finditer(lines):
            if bisect_right(starts, match.start(1)) < bisect_right(starts, match.end(1) - 1):  # it has a break within
                first, last = (bisect_right(starts, at) - 1 for at in (match.start(), match.end() - 1))
                yield match.start() + moves[first], match.end() + moves[last]


def _without_breaks(text: str) -> tuple[str, list[int], list[int]]:
    """Returns a text without breaks, where each of its lines starts in the result, and by how much it was moved."""
    lines, starts, moves, end = [], [0], [0], 0
    for found in _BREAK.finditer(text):
        lines.append(text[end : found.start()])
        end = found.end()
        starts.append(starts[-1] + len(lines[-1]))
        moves.append(end - starts[-1])
    return "".join([*lines, text[end:]]), starts, moves


def _patterns(value: str) -> Iterator[re.Pattern[str]]:
    """Yields the patterns of a value, also percent-encoded and escaped."""
    yield re.compile(re.escape(value))
    if not value.isascii() or not value.isalnum():
        yield re.compile("".join(map(_any_form, _BACKSLASHES_OR_ONE.findall(value))))


def _encoded_patterns(value: str) -> Iterator[re.Pattern[str]]:
    """Yields the patterns of a value in hex and base64, which can be wrapped into lines. Their group is the value."""
    yield re.compile(f"({value.encode().hex()})", re.IGNORECASE)
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
    return re.compile(rf"[A-Za-z0-9+/_-]?({'|'.join(cores)})[A-Za-z0-9+/_-]?={{0,2}}")
