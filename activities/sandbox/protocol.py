"""What the rest of the program knows of a sandbox."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pydantic import JsonValue

from activities.sandbox.limits import Limits
from activities.sandbox.ran import FaultKind, Ran, fault


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
