"""A turn that takes the place of the one under way: that one is asked to stop, this one is the next.

Of several that would replace the same turn the last one does: the one before it ends as replaced too, without having
run. The turn that gives way ends in its own time, and its end admits the other (store/finish.py); a request that waits
for a person is cancelled on record then.

Locks: the active turn, the one that was to take its place, then user and conversation, as everywhere.
"""

from contracts.turns import FinishAsk, TurnAddress, TurnStatus
from store import audit
from store.database import Connection
from store.finish import finish
from store.outbox import Note, Wake, put


async def hold_active(tx: Connection, conversation_id: str) -> str | None:
    """Lock the turn that is active just now, and the one that is to take its place; its id, None without one.

    Another may be active once the conversation is locked: then these are the wrong ones.
    """
    active = await tx.fetchrow(
        "SELECT t.id, t.replaced_by FROM conversations c JOIN turns t ON t.id = c.active_turn_id WHERE c.id = $1 "
        "FOR UPDATE OF t",
        conversation_id,
    )
    if active is None:
        return None
    await tx.execute("SELECT FROM turns WHERE id = $1 FOR UPDATE", active["replaced_by"])
    return str(active["id"])


async def give_way(tx: Connection, active: TurnAddress, to: str, user_id: str) -> Note:
    """Ask the active turn to stop for the queued turn `to`; the note is its doorbell. The caller holds all locks."""
    before = await tx.fetchval(
        "SELECT r.id FROM turns t JOIN turns r ON r.id = t.replaced_by AND r.ended_at IS NULL WHERE t.id = $1",
        active.turn_id,
    )
    await tx.execute(
        "UPDATE turns SET replaced_by = $2, stop_requested_at = coalesce(stop_requested_at, clock_timestamp()) "
        "WHERE id = ANY(ARRAY[$1, $3]::uuid[])",
        active.turn_id,
        to,
        before,
    )
    await audit.record(
        tx, "turn.stop_requested", active.turn_id, {"replaced_by": to}, actor=user_id, turn_id=active.turn_id
    )
    if before is not None:  # nothing runs that could end it
        other = active.model_copy(update={"turn_id": str(before)})
        await finish(tx, FinishAsk(address=other, status=TurnStatus.STOPPED))
    return await put(tx, active.tenant_id, Wake.STOP, active.turn_id)
