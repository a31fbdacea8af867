"""What became of a call that changes something, as the audit keeps it: what ran, with which arguments and result.

A call that a person allowed is told of under its approval; one that nobody was asked about and that acts outside, under
its effect, as its user's, and so is one that the tenant's policy let pass. What another free call changes in our own
tables is not told here.
"""

import asyncpg
from pydantic import JsonValue

from contracts.agents import EffectClass
from contracts.digests import digest_of
from contracts.tools import CallState
from policy.waivers import RULE_WAIVED
from store import audit
from store.database import Connection

MOST_CHARACTERS = 2_000
"""Of a result; all of it is the turn's message."""
_OUTSIDE = frozenset({EffectClass.KEYED, EffectClass.OPAQUE})
_RAN = frozenset({CallState.DONE, CallState.FAILED, CallState.OUTCOME_UNKNOWN})


async def record_outcome(
    tx: Connection, turn_id: str, row: asyncpg.Record, state: CallState, result: str | None, *, waived: bool = False
) -> None:
    """Append what became of the call, in the transaction that says so; no result: nothing came back.

    `row` has its call_id, key, tool, effect and args as they ran, its turn's user_id, and as approval_id that of the
    approval which let it run, None where it needed none; `waived` is whether that was the tenant's policy.
    """
    args: dict[str, JsonValue] = row["args"]
    body: dict[str, JsonValue] = {
        "call_id": row["call_id"],
        "tool": row["tool"],
        "args": args,
        "args_digest": digest_of(args),
        "state": state.value,
        "result": None if result is None else result[:MOST_CHARACTERS],
    }
    if row["approval_id"] is not None:
        await audit.record(tx, "call.settled", str(row["approval_id"]), body, actor=None, turn_id=turn_id)
    elif waived and state in _RAN:
        told = {**body, "rule": RULE_WAIVED}
        await audit.record(tx, "call.ran", row["key"], told, actor=str(row["user_id"]), turn_id=turn_id)
    elif row["effect"] in _OUTSIDE and state in _RAN:
        await audit.record(tx, "call.ran", row["key"], body, actor=str(row["user_id"]), turn_id=turn_id)
