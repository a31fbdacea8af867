"""What became of a call that a person allowed, as the audit keeps it: what ran, with which arguments and result."""

from pydantic import JsonValue

from contracts.digests import digest_of
from contracts.tools import CallState
from store import audit
from store.database import Connection

MOST_CHARACTERS = 2_000
"""Of a result; all of it is the turn's message."""


async def record_settled(
    tx: Connection,
    turn_id: str,
    approval_id: str,
    call_id: str,
    tool: str,
    args: dict[str, JsonValue],
    state: CallState,
    result: str | None,
) -> None:
    """Append the row, in the transaction that settles the call. Its subject is the approval; no result: nothing came
    back."""
    body: dict[str, JsonValue] = {
        "call_id": call_id,
        "tool": tool,
        "args": args,
        "args_digest": digest_of(args),
        "state": state.value,
        "result": None if result is None else result[:MOST_CHARACTERS],
    }
    await audit.record(tx, "call.settled", approval_id, body, actor=None, turn_id=turn_id)
