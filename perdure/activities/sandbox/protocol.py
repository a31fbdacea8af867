"""What the rest of the program knows of a sandbox."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from pydantic import JsonValue

from perdure.core.json_schema import schema_fault
from perdure.core.text import clean

# --- What one run of a block may use.

MIB = 1_048_576


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one run; a driver never goes beyond its own, whatever a caller asks for.

    Raises: ValueError for a bound that is not above zero.
    """

    wall_seconds: float = 2.0
    """From the start of the code to its value; waiting for a worker is not counted."""
    memory_bytes: int = 64 * MIB
    """Of the interpreter's heap. The whole process is bounded too, 32 MiB above the driver's own bound."""
    output_bytes: int = 262_144
    """Of what is printed, and again of the value as JSON."""
    recursion_frames: int = 400
    """Calls within calls."""

    def __post_init__(self) -> None:
        if not (
            self.wall_seconds > 0 and self.memory_bytes > 0 and self.output_bytes > 0 and self.recursion_frames > 0
        ):
            raise ValueError("every limit of a block must be above zero")

    def within(self, ceiling: "Limits") -> "Limits":
        """The smaller of each."""
        return Limits(
            min(self.wall_seconds, ceiling.wall_seconds),
            min(self.memory_bytes, ceiling.memory_bytes),
            min(self.output_bytes, ceiling.output_bytes),
            min(self.recursion_frames, ceiling.recursion_frames),
        )


# --- What a run of a block came to: a value, or a fault that a model can be told.

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


class SandboxUnavailable(Exception):
    """No sandbox that holds can be had on this machine; the text names what is missing and the next step."""


@dataclass(frozen=True, slots=True)
class Flaw:
    """Why a block is refused when it is loaded."""

    message: str
    line: int | None = None
    """Of the block, counted from 1; None where the fault is a schema's or the whole block's."""

    def __str__(self) -> str:
        return self.message if self.line is None else f"line {self.line}: {self.message}"


class Sandbox(Protocol):
    """Runs code that nobody vouches for. Its methods raise SandboxUnavailable and nothing else of their own."""

    async def run(
        self, tenant_id: str, code: str, inputs: Mapping[str, JsonValue], limits: Limits | None = None
    ) -> Ran:
        """Call the function `run` that `code` defines with `inputs` as its keyword arguments.

        Effects: none that outlive it; safe to repeat. No two tenants ever share a worker process.
        """
        ...

    async def check(
        self, code: str, input_schema: Mapping[str, JsonValue], output_schema: Mapping[str, JsonValue]
    ) -> tuple[Flaw, ...]:
        """What is wrong with `code` before it ever runs; empty where nothing is. None of it is run."""
        ...

    async def close(self) -> None:
        """End all workers."""
        ...


class ClosedSandbox:
    """Answers every block with why none can run: for a process that shall serve everything else."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def run(
        self, tenant_id: str, code: str, inputs: Mapping[str, JsonValue], limits: Limits | None = None
    ) -> Ran:
        """A fault, always."""
        return Ran(fault=fault(FaultKind.CLOSED, f"code blocks are not available here: {self._reason}"))

    async def check(
        self, code: str, input_schema: Mapping[str, JsonValue], output_schema: Mapping[str, JsonValue]
    ) -> tuple[Flaw, ...]:
        """One flaw, always: what was not checked is not offered."""
        return (Flaw(f"code blocks are not available here: {self._reason}"),)

    async def close(self) -> None:
        """Nothing to end."""


# --- A block with its schemas: what goes in is checked before it runs, what comes out before anyone reads it.

_MOST_AT_ONCE_BYTES = 16_384
"""A longer value is checked on a thread: one of 256 KiB against `uniqueItems` can take the validator seconds."""


@dataclass(frozen=True, slots=True)
class Block:
    """Code that defines `run`, and what that takes and returns."""

    code: str
    input_schema: Mapping[str, JsonValue]
    """Of an object; its properties are the parameters of `run`."""
    output_schema: Mapping[str, JsonValue]


async def run_block(
    sandbox: Sandbox,
    tenant_id: str,
    block: Block,
    inputs: Mapping[str, JsonValue],
    limits: Limits | None = None,
    given: Mapping[str, JsonValue] = MappingProxyType({}),
) -> Ran:
    """One run; whatever is wrong with inputs, block or value is the fault of the answer, never an exception.

    `given` are further parameters of `run`, the engine's own, which no schema is asked about.

    Raises: SandboxUnavailable.
    """
    misfit = schema_fault(inputs, block.input_schema)
    if misfit is not None:
        return Ran(fault=fault(FaultKind.INPUTS, f"the inputs do not fit: {misfit}"))
    ran = await sandbox.run(tenant_id, block.code, {**inputs, **given}, limits)
    if ran.fault is not None:
        return ran
    if ran.value_bytes > _MOST_AT_ONCE_BYTES:
        wrong = await asyncio.to_thread(_value_fault, ran.value, block.output_schema)
    else:
        wrong = _value_fault(ran.value, block.output_schema)
    return ran if wrong is None else replace(ran, value=None, value_bytes=0, fault=wrong)


def _value_fault(value: JsonValue, schema: Mapping[str, JsonValue]) -> Fault | None:
    if isinstance(value, dict):
        misfit = schema_fault(value, schema)
    else:
        whole: dict[str, JsonValue] = {"properties": {"value": dict(schema)}, "$defs": schema.get("$defs", {})}
        misfit = schema_fault({"value": value}, whole)
    return None if misfit is None else fault(FaultKind.VALUE, f"the value does not fit the output schema: {misfit}")
