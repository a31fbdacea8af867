"""Turns as the reconciler finds them: begun on a queue without workers, and older than they are."""

from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.service import RPCError, RPCStatusCode

from perdure.contracts.ids import turn_workflow_id
from perdure.contracts.turns import TurnAddress
from tests.doubles.message_script import Line
from tests.harness import Harness


async def begun(harness: Harness, *, conversation_id: str | None = None) -> TurnAddress:
    """A turn whose workflow runs on a queue without workers."""
    address, started = await harness.start(Line("hi"), conversation_id=conversation_id)
    assert started.note is not None and await harness.deps.notifier.deliver_soon(started.note)
    return address


async def make_older(harness: Harness, *turns: TurnAddress) -> None:
    statement = "UPDATE turns SET created_at = created_at - interval '1 minute' WHERE id = ANY($1)"
    await harness.write(statement, [address.turn_id for address in turns])


async def status(harness: Harness, address: TurnAddress) -> tuple[str, str | None]:
    row = (await harness.rows("SELECT status, problem FROM turns WHERE id = $1", address.turn_id))[0]
    return row["status"], (row["problem"] or {}).get("code")


async def workflow_or_none(temporal: Client, address: TurnAddress) -> WorkflowExecutionDescription | None:
    try:
        return await temporal.get_workflow_handle(turn_workflow_id(address.turn_id)).describe()
    except RPCError as error:
        assert error.status is RPCStatusCode.NOT_FOUND
        return None
