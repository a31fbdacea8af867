"""What a run of a block came to: a value, or a fault that a model can be told."""

from dataclasses import dataclass
from enum import StrEnum

from pydantic import JsonValue

from policy.text import clean

MOST_MESSAGE_CHARACTERS = 1_000
"""A block chooses its exception's text, up to all its memory; this much of it is kept."""


class FaultKind(StrEnum):
    """Why there is no value. A closed set; none of them is cured by trying again."""

    INPUTS = "inputs"
    """They do not fit the block's input schema, or cannot be passed on."""
    CODE = "code"
    """It is no program of the language, or defines no function `run`."""
    RAISED = "raised"
    """An exception left the block."""
    TIME = "time"
    MEMORY = "memory"
    OUTPUT = "output"
    """It printed too much, or its value is too long."""
    RECURSION = "recursion"
    VALUE = "value"
    """What it returned is no JSON, or not what its output schema allows."""
    CRASHED = "crashed"
    """The worker died of it."""
    CLOSED = "closed"
    """No code blocks run here at all."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a run has no value."""

    kind: FaultKind
    message: str
    """In words for the model; what the block itself said is cut and cleaned."""
    line: int | None = None
    """The innermost line of the block where it happened, counted from 1; None where there is none."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One run."""

    value: JsonValue = None
    """What the block's `run` returned; None beside a fault."""
    value_bytes: int = 0
    """Its length as JSON."""
    fault: Fault | None = None
    output: str = ""
    """What it printed, as far as the limit goes; a run that was killed may lack its end."""
    wall_seconds: float = 0.0
    cpu_seconds: float | None = None
    """Of the worker, for this run; None where the worker did not outlive it."""


def fault(kind: FaultKind, message: str, line: int | None = None) -> Fault:
    """A fault with a message that can be stored and is no longer than a person reads."""
    text = clean(message[: MOST_MESSAGE_CHARACTERS + 1])
    if len(text) > MOST_MESSAGE_CHARACTERS:
        text = text[: MOST_MESSAGE_CHARACTERS - 1] + "…"
    return Fault(kind, text, line)
