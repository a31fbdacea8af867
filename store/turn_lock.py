"""The lock that every claim, reservation and settle takes first: the turn's row.

It is a statement of its own. A statement that waits for a lock sees the locked row as it is now and every other row as
it was before, so what depends on the turn is read by the next statement.
"""

from dataclasses import dataclass

from policy.ledger import Gate
from store.database import Connection


@dataclass(frozen=True, slots=True)
class LockedTurn:
    """A turn, locked for this transaction."""

    gate: Gate
    tenant_id: str
    user_id: str
    through_seq: int
    system_prompt: str | None
    memory_text: str | None


async def lock_turn(tx: Connection, turn_id: str) -> LockedTurn | None:
    """Lock and read the turn; None where there is none."""
    row = await tx.fetchrow(
        "SELECT ended_at IS NOT NULL AS ended, stop_requested_at IS NOT NULL AS stopped, tenant_id, user_id, "
        "through_seq, system_prompt, memory_text FROM turns WHERE id = $1 FOR UPDATE",
        turn_id,
    )
    if row is None:
        return None
    return LockedTurn(
        Gate(row["ended"], row["stopped"]),
        row["tenant_id"],
        str(row["user_id"]),
        row["through_seq"],
        row["system_prompt"],
        row["memory_text"],
    )
