"""Arguments as a person wrote them, in JSON: read strictly, nothing repaired and nothing guessed."""

import json
from collections.abc import Mapping
from typing import Any

from contracts.digests import canonical_json


class Unfit(Exception):
    """What was written is no set of arguments for this tool; the message says why."""


def parsed(text: str) -> dict[str, Any]:
    """A JSON object, read strictly.

    Raises: Unfit.
    """
    value = parsed_value(text)
    if not isinstance(value, dict):
        raise Unfit("the arguments must be a JSON object")
    return value


def parsed_value(text: str) -> Any:
    """Any JSON value, read strictly.

    Raises: Unfit.
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        line = (text.split("\n") or [""])[error.lineno - 1].strip()
        raise Unfit(f"that is not JSON: {error.msg} at column {error.colno} of the line {line!r}") from error
    except (ValueError, RecursionError) as error:
        raise Unfit(f"that is not JSON: {error}") from error


def same(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether both are the same JSON; 1 and `true` are not."""
    return canonical_json(before) == canonical_json(after)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is given twice")
    return read


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a number")
