"""A call's result as the model is told it: the tool's own, or one with a note of ours around it, and the way back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

CHANGED: Final = "A reviewer changed the arguments of this call and it has run as changed. Do not issue it again."
STANDS: Final = "The call has run and its effect stands; do not repeat it."


@dataclass(frozen=True, slots=True)
class Told:
    """What is inside."""

    result: JsonValue
    """The tool's own."""
    edited: bool = False
    """A reviewer changed the call before it ran."""


def as_changed(arguments: Mapping[str, JsonValue], result: JsonValue) -> dict[str, JsonValue]:
    """The result of a call that a reviewer changed (S0-39)."""
    return {"note": CHANGED, "arguments": {**arguments}, "result": result}


def unremembered(code: str, why: str, result: JsonValue) -> dict[str, JsonValue]:
    """The result of a call that has run, and did not get what it wanted remembered."""
    return {"status": "error", "code": code, "message": f"{STANDS} {why}", "result": result}


def inside(value: JsonValue) -> Told:
    """The tool's own result, whatever was said around it."""
    if not isinstance(value, dict):
        return Told(value)
    if value.keys() == {"note", "arguments", "result"} and value["note"] == CHANGED:
        return Told(inside(value["result"]).result, edited=True)
    if value.keys() == {"status", "code", "message", "result"} and str(value["message"]).startswith(STANDS):
        return Told(value["result"])
    return Told(value)
