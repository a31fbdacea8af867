"""The interface of a sandbox: limits, faults, results, and the functions that other modules call."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from pydantic import JsonValue

from perdure.core.json_schema import schema_fault
from perdure.core.text import clean

MIB = 1_048_576
MAX_MESSAGE_CHARACTERS = 1_000
"""The maximum length of a message. A block chooses its exception's text, which can fill all its memory; the rest is
cut."""
_MAX_INLINE_CHECK_BYTES = 16_384
"""A longer value is checked on a thread: a value of 256 KiB against `uniqueItems` can take the validator seconds."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one run. A driver never exceeds its own limits, whatever a caller requests.

    Raises: ValueError for a limit that is not above zero.
    """

    wall_seconds: float = 2.0
    """Time from the start of the code to its value; waiting for a worker is not counted."""
    memory_bytes: int = 64 * MIB
    """Limit of the interpreter's heap. The whole process has a limit too, 32 MiB above the driver's own."""
    output_bytes: int = 262_144
    """Limit of the printed text, and separately of the value as JSON."""
    recursion_frames: int = 400
    """Maximum depth of nested calls."""

    def __post_init__(self) -> None:
        if not (
            self.wall_seconds > 0 and self.memory_bytes > 0 and self.output_bytes > 0 and self.recursion_frames > 0
        ):
            raise ValueError("every limit of a block must be greater than zero")

    def within(self, ceiling: "Limits") -> "Limits":
        """Returns these limits, each at most as large as in `ceiling`."""
        return Limits(
            min(self.wall_seconds, ceiling.wall_seconds),
            min(self.memory_bytes, ceiling.memory_bytes),
            min(self.output_bytes, ceiling.output_bytes),
            min(self.recursion_frames, ceiling.recursion_frames),
        )


class FaultKind(StrEnum):
    """Reasons for a run without a value. A retry changes none of them."""

    INPUTS = "inputs"
    """The inputs do not match the block's input schema, or cannot be sent to the interpreter."""
    CODE = "code"
    """The code is not a program of the language, or defines no function `run`."""
    RAISED = "raised"
    """An exception left the block."""
    TIME = "time"
    MEMORY = "memory"
    OUTPUT = "output"
    """The block printed too much, or its value is too long."""
    RECURSION = "recursion"
    VALUE = "value"
    """The return value is not JSON, or does not match the output schema."""
    CRASHED = "crashed"
    """The worker died during the run."""
    CLOSED = "closed"
    """Code blocks are not available on this machine."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A run ended without a value."""

    kind: FaultKind
    message: str
    """Message for the model. Text from the block is cut and cleaned."""
    line: int | None = None
    """The innermost line of the block where the fault happened, counted from 1; None if there is none."""


@dataclass(frozen=True, slots=True)
class BlockResult:
    """The result of one run."""

    value: JsonValue = None
    """The return value of the block's `run`; None if there is a fault."""
    value_bytes: int = 0
    """Its length as JSON, in bytes."""
    fault: Fault | None = None
    output: str = ""
    """The printed text, up to the limit. If the run was killed, the end may be missing."""
    wall_seconds: float = 0.0
    cpu_seconds: float | None = None
    """CPU time of the worker for this run; None if the worker died."""


def fault(kind: FaultKind, message: str, line: int | None = None) -> Fault:
    """Returns a fault whose message can be stored: clean text of at most `MAX_MESSAGE_CHARACTERS` characters."""
    text = clean(message[: MAX_MESSAGE_CHARACTERS + 1])
    if len(text) > MAX_MESSAGE_CHARACTERS:
        text = text[: MAX_MESSAGE_CHARACTERS - 1] + "…"
    return Fault(kind, text, line)


class SandboxUnavailable(Exception):
    """This machine has no secure sandbox. The message names what is missing and the next step."""


@dataclass(frozen=True, slots=True)
class Flaw:
    """A reason for rejecting a block when it is loaded."""

    message: str
    line: int | None = None
    """The line of the block, counted from 1; None if the flaw is in a schema or in the whole block."""

    def __str__(self) -> str:
        return self.message if self.line is None else f"line {self.line}: {self.message}"


class Sandbox(Protocol):
    """Runs code that is not trusted. Its methods raise SandboxUnavailable and no other error of the sandbox."""

    async def run(
        self, tenant_id: str, code: str, inputs: Mapping[str, JsonValue], limits: Limits | None = None
    ) -> BlockResult:
        """Calls the function `run` that `code` defines, with `inputs` as its keyword arguments.

        Effects: none remain after the run, so that it is safe to repeat. Two tenants never share a worker process.
        """
        ...

    async def check(
        self, code: str, input_schema: Mapping[str, JsonValue], output_schema: Mapping[str, JsonValue]
    ) -> tuple[Flaw, ...]:
        """Returns what is wrong with `code`; empty if nothing is. The code is not run."""
        ...

    async def close(self) -> None:
        """Ends all workers."""
        ...


class ClosedSandbox:
    """Answers every block with the reason why none can run, so that the process can serve everything else."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def run(
        self, tenant_id: str, code: str, inputs: Mapping[str, JsonValue], limits: Limits | None = None
    ) -> BlockResult:
        """Always returns a fault."""
        return BlockResult(fault=fault(FaultKind.CLOSED, f"code blocks are not available: {self._reason}"))

    async def check(
        self, code: str, input_schema: Mapping[str, JsonValue], output_schema: Mapping[str, JsonValue]
    ) -> tuple[Flaw, ...]:
        """Always returns one flaw: a block that was not checked is not offered."""
        return (Flaw(f"code blocks are not available: {self._reason}"),)

    async def close(self) -> None:
        """Does nothing; there are no workers."""


@dataclass(frozen=True, slots=True)
class Block:
    """Code that defines `run`, with the schemas of its parameters and its return value."""

    code: str
    input_schema: Mapping[str, JsonValue]
    """The schema of an object whose properties are the parameters of `run`."""
    output_schema: Mapping[str, JsonValue]


async def run_block(
    sandbox: Sandbox,
    tenant_id: str,
    block: Block,
    inputs: Mapping[str, JsonValue],
    limits: Limits | None = None,
    engine_inputs: Mapping[str, JsonValue] = MappingProxyType({}),
) -> BlockResult:
    """Runs a block once. Errors in the inputs, the block or its value are returned as the result's fault and are not
    raised.

    `engine_inputs` holds further parameters of `run` that the engine adds; no schema covers them.

    Inputs are checked before the block runs, and the value before it is used.

    Raises: SandboxUnavailable.
    """
    mismatch = schema_fault(inputs, block.input_schema)
    if mismatch is not None:
        return BlockResult(fault=fault(FaultKind.INPUTS, f"the inputs do not match the input schema: {mismatch}"))
    result = await sandbox.run(tenant_id, block.code, {**inputs, **engine_inputs}, limits)
    if result.fault is not None:
        return result
    if result.value_bytes > _MAX_INLINE_CHECK_BYTES:
        value_fault = await asyncio.to_thread(_value_fault, result.value, block.output_schema)
    else:
        value_fault = _value_fault(result.value, block.output_schema)
    return result if value_fault is None else replace(result, value=None, value_bytes=0, fault=value_fault)


def _value_fault(value: JsonValue, schema: Mapping[str, JsonValue]) -> Fault | None:
    if isinstance(value, dict):
        mismatch = schema_fault(value, schema)
    else:
        object_schema: dict[str, JsonValue] = {"properties": {"value": dict(schema)}, "$defs": schema.get("$defs", {})}
        mismatch = schema_fault({"value": value}, object_schema)
    return (
        None
        if mismatch is None
        else fault(FaultKind.VALUE, f"the return value does not match the output schema: {mismatch}")
    )
