"""How a tool answers: a value, a definite no, or "nothing was sent".

What a tool raises decides whether its effect is retried, refused or handed to a person, so the two exceptions here are
promises, not labels. Any other exception means "it may have happened", and the effect class decides (design section 4).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite

from pydantic import JsonValue
from pydantic_core import to_jsonable_python

from policy.text import clean

_MOST_BITS = 14_000
"""Python writes no integer of more than 4,300 digits (14,284 bits)."""


class ToolRefused(Exception):
    """A definite no, and nothing happened: `message` is shown to the model, and the call is settled as failed."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ToolUnavailable(Exception):
    """This attempt did nothing and may be made again, after `retry_after_seconds` where the target named a wait; by
    `status` where the target answered with one."""

    def __init__(self, message: str, retry_after_seconds: float | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_seconds = retry_after_seconds
        self.status = status


@dataclass(frozen=True, slots=True)
class Audited:
    """What is written into the audit when the call is recorded, under `tool.<name>` and the user's name."""

    subject: str
    """What it happened to: an id, never a name, since it outlives the erasure of a person."""
    data: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MadeFile:
    """A file that a call made: kept with the call's record, under `ToolContext.file_id(name)`."""

    name: str
    """Its own among the files of the call."""
    media_type: str
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool call came to. A state-aware tool returns one itself (S0-48); any other a bare JSON value.

    It only says what shall be changed: the engine does it, in the transaction that records the call.
    """

    output: JsonValue
    """What the model reads."""
    state: Mapping[str, JsonValue] = field(default_factory=dict)
    """Updates of the turn's state fields."""
    working: Mapping[str, JsonValue] = field(default_factory=dict)
    """Updates of the conversation's working memory; None removes a field."""
    audited: Audited | None = None
    """None where the call's own record is enough."""
    files: tuple[MadeFile, ...] = ()


def result_of(returned: object) -> ToolResult:
    """Whatever a tool function returned, as a result that can be stored. Never raises: the effect has happened."""
    if not isinstance(returned, ToolResult):
        return ToolResult(_json_of(returned))
    noted = returned.audited
    return ToolResult(
        _json_of(returned.output),
        _fields_of(returned.state),
        _fields_of(returned.working),
        None if noted is None else Audited(clean(str(noted.subject)), _fields_of(noted.data)),
        tuple(returned.files),
    )


def _fields_of(value: object) -> dict[str, JsonValue]:
    stored = _json_of(value)
    return stored if isinstance(stored, dict) else {}


def _json_of(value: object) -> JsonValue:
    try:
        return _storable(value)
    except Exception as error:  # a value that holds itself, a __str__ that raises
        return f"the tool answered with something that is not JSON ({type(error).__name__})"


def _storable(value: object) -> JsonValue:
    """`value` as JSON without what jsonb cannot hold: NUL, lone surrogates, NaN, infinities, giant integers."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, int):
        return value if value.bit_length() <= _MOST_BITS else None
    if isinstance(value, list | tuple):
        return [_storable(item) for item in value]
    if isinstance(value, Mapping):
        return {clean(str(key)): _storable(item) for key, item in value.items()}
    return _storable(to_jsonable_python(value, inf_nan_mode="constants", bytes_mode="base64", fallback=str))
