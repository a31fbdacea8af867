"""A block with its schemas: what goes in is checked before it runs, what comes out before anyone reads it."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from pydantic import JsonValue

from activities.sandbox.limits import Limits
from activities.sandbox.protocol import Sandbox
from activities.sandbox.ran import Fault, FaultKind, Ran, fault
from policy.fitting import schema_fault

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
