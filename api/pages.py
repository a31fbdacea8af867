"""How much of a list is asked for."""

from typing import Annotated

from fastapi import Query
from pydantic import BeforeValidator

_DIGITS = 9


def _readable(value: object) -> object:
    """A number with more digits than can be read is more than any list gives, and is clamped like every other."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value.lstrip("0")) > _DIGITS:
        return 10**_DIGITS
    return value


Limit = Annotated[int, BeforeValidator(_readable), Query(ge=1, description="more than a list gives is clamped")]
"""The `limit` of a list; the route clamps it to its own most."""
