"""What a block returned, read from the JSON text that its worker sent; the text is the block's, so it is hostile."""

import json
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from activities.sandbox.ran import FaultKind
from policy.text import is_clean

MOST_DEPTH = 32
"""As for arguments (policy/arguments.py)."""


@dataclass(frozen=True, slots=True)
class Value:
    """What came back."""

    json: JsonValue
    size_bytes: int
    """As text."""


class Unfit(Exception):
    """Why a text is no value; the text says it in words for the model."""

    def __init__(self, message: str, kind: FaultKind = FaultKind.VALUE) -> None:
        super().__init__(message)
        self.kind = kind


def read_value(text: object, most_bytes: int) -> Value:
    """The value, which Postgres can store and nothing can grow.

    Raises: Unfit.
    """
    if not isinstance(text, str):
        raise Unfit("the block hid the end of its program")
    if len(text) > most_bytes:  # `dumps` writes ASCII: a character is a byte
        raise Unfit(f"the value is longer than {most_bytes} bytes as JSON", FaultKind.OUTPUT)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise Unfit("the value is no JSON that can be read; is a number too long?") from None
    _check(value, MOST_DEPTH)
    return Value(value, len(text))


def _check(value: Any, depth: int) -> None:
    """Raises: Unfit for what cannot be stored."""
    if isinstance(value, str) and not is_clean(value):
        raise Unfit("a text of the value holds a NUL or half a character")
    if not isinstance(value, list | dict):
        return
    if depth == 0:
        raise Unfit(f"the value is nested deeper than {MOST_DEPTH} levels")
    for part in value if isinstance(value, list) else (*value, *value.values()):
        _check(part, depth - 1)
