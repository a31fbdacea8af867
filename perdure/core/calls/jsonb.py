"""The form in which Postgres' jsonb returns a JSON value."""

import math

from pydantic import JsonValue

from perdure.core.text import is_clean

MAX_DEPTH = 32
_MAX_DIGITS = 300
"""An integer beyond the range of a float is not a useful argument."""


class InvalidArguments(Exception):
    """The value is not a set of arguments, or jsonb would not return it unchanged."""


def jsonb_form(value: object, depth: int = MAX_DEPTH) -> JsonValue:
    """Returns `value` as jsonb would return it.

    Raises: InvalidArguments.
    """
    if depth == 0 and isinstance(value, list | dict):
        raise InvalidArguments(f"they are nested deeper than {MAX_DEPTH} levels")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if not is_clean(value):
            raise InvalidArguments("a string contains a NUL character or a lone surrogate")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidArguments("a number is too large")
        if not value.is_integer():
            return value
        value = int(value)
    if isinstance(value, int):
        if abs(value) >= 10**_MAX_DIGITS:
            raise InvalidArguments("a number is too large")
        return value
    if isinstance(value, list):
        return [jsonb_form(item, depth - 1) for item in value]
    if isinstance(value, dict):
        return {_name(key): jsonb_form(item, depth - 1) for key, item in value.items()}
    raise InvalidArguments(f"a {type(value).__name__} cannot be written as JSON")


def _name(key: object) -> str:
    if not isinstance(key, str) or not is_clean(key):
        raise InvalidArguments("a name contains a NUL character or a lone surrogate")
    return key
