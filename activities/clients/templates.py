"""The little template language of a script: `{name}`, `{name:int}`, `{result.field}`, `{results.0.field}`, `{{`.

Names are the named groups of the rule's patterns, `message` (the user's whole text) and `note` (the whole note).
A text that is nothing but one placeholder gives the value itself, so that arguments keep their types.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import JsonValue

_PIECE = re.compile(r"(\{\{|\}\})|\{([^{}]*)\}|([{}])")
_NAME = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<path>(\.\w+)*)(:(?P<type>\w+))?")

_TYPES: dict[str, Callable[[str], JsonValue]] = {"str": str, "int": int, "float": float}


class Missing(ValueError):
    """A placeholder has no value: no such field, or a group that took no part in the match."""


def placeholders(template: str) -> Iterator[tuple[str, bool]]:
    """Every name in `template`, and whether it has a path.

    Raises: ValueError where the template cannot be read.
    """
    for piece in _PIECE.finditer(template):
        if piece[3]:
            raise ValueError(f"a lone {piece[3]} in {template!r}; write it twice to mean itself")
        if piece[2] is not None:
            match = _NAME.fullmatch(piece[2])
            if match is None or (match["type"] or "str") not in _TYPES:
                raise ValueError(f"cannot read {{{piece[2]}}} in {template!r}")
            yield match["name"], bool(match["path"])


def fill(template: str, values: Mapping[str, Any]) -> JsonValue:
    """`template` with its placeholders filled; the value itself where it is one placeholder and nothing else.

    Raises: ValueError (Missing) where a value is absent or is not of the type asked for.
    """
    whole = _PIECE.fullmatch(template)
    if whole is not None and whole[2] is not None:
        return _value(whole[2], values)
    return _PIECE.sub(lambda piece: piece[1][0] if piece[1] else _as_text(_value(piece[2], values)), template)


def fill_text(template: str, values: Mapping[str, Any]) -> str:
    """`template` as text; an absent group is empty."""
    return _as_text(fill(template, values)) if template else ""


def fill_arguments(value: JsonValue, values: Mapping[str, Any]) -> JsonValue:
    """`value` with every text in it filled; an argument whose only placeholder is an absent group is left out."""
    if isinstance(value, str):
        return fill(value, values)
    if isinstance(value, list):
        return [fill_arguments(item, values) for item in value]
    if isinstance(value, dict):
        filled = {}
        for name, item in value.items():
            result = fill_arguments(item, values)
            if result is not None or item is None:
                filled[name] = result
        return filled
    return value


def _value(placeholder: str, values: Mapping[str, Any]) -> JsonValue:
    match = _NAME.fullmatch(placeholder)
    if match is None or match["name"] not in values:
        raise Missing(f"{{{placeholder}}} has no value")
    value = field_at(values[match["name"]], match["path"].split(".")[1:])
    if value is None or match["type"] is None:
        return value
    converted = _TYPES[match["type"]](str(value))
    if isinstance(converted, float) and not math.isfinite(converted):
        raise ValueError(f"{{{placeholder}}} is not a number that JSON knows")
    return converted


def field_at(value: Any, path: Sequence[str]) -> JsonValue:
    """The field of a JSON value at `path`; a number is a place in a list.

    Raises: Missing where there is none.
    """
    for step in path:
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, (list, tuple)) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            raise Missing(f"there is no {'.'.join(path)!r} in it")
    found: JsonValue = value
    return found


def _as_text(value: JsonValue) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
