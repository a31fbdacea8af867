"""Wake-ups that must not be lost: rows of ids, written in the transaction that made them necessary.

Whoever commits a row may deliver it at once and remove it; the relay delivers what is left when it is due.
"""

from dataclasses import dataclass
from enum import StrEnum

import asyncpg

from perdure.contracts.turns import Carried, Routing, TurnAddress, TurnInput, TurnStatus
from perdure.store.database import Connection, Database

HEAD_START = "1 second"
"""How long the writer has to deliver its own row before the relay does."""


class Wake(StrEnum):
    """What a row asks for."""

    START = "start"
    RING = "ring"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Note:
    """One wake-up: whom, why."""

    id: int
    tenant_id: str
    kind: Wake
    turn_id: str
    request_id: str = ""
    begins: TurnInput | None = None
    """What the workflow begins with, where the writer knows it; the relay reads it from the turn's row."""
    attempts: int = 0
    """How often the relay has taken it, this time included."""


async def put(tx: Connection, tenant_id: str, kind: Wake, turn_id: str, request_id: str = "") -> Note:
    """Write a wake-up that the caller will try to deliver itself after the commit."""
    number = await tx.fetchval(
        "INSERT INTO outbox (tenant_id, kind, turn_id, request_id, due_at) "
        f"VALUES ($1, $2, $3, $4, now() + interval '{HEAD_START}') RETURNING id",
        tenant_id,
        kind.value,
        turn_id,
        request_id,
    )
    return Note(number, tenant_id, kind, turn_id, request_id)


async def delivered(db: Database, note: Note) -> None:
    """Forget a wake-up that has been delivered."""
    await db.execute(note.tenant_id, f"DELETE FROM outbox WHERE id = {note.id:d}")


async def claim_due(relay_pool: asyncpg.Pool, most: int = 50) -> list[Note]:
    """Take due wake-ups of all tenants for ten seconds; only the relay's role sees them. Safe to run twice."""
    rows = await relay_pool.fetch(
        "UPDATE outbox SET due_at = now() + interval '10 seconds', attempts = attempts + 1 WHERE id IN ("
        "SELECT id FROM outbox WHERE due_at <= now() ORDER BY due_at, id LIMIT $1 FOR UPDATE SKIP LOCKED) "
        "RETURNING id, tenant_id, kind, turn_id, request_id, attempts",
        most,
    )
    return [
        Note(r["id"], r["tenant_id"], Wake(r["kind"]), str(r["turn_id"]), r["request_id"], attempts=r["attempts"])
        for r in rows
    ]


async def forget(relay_pool: asyncpg.Pool, notes: list[int]) -> None:
    """Remove delivered wake-ups, by the relay."""
    await relay_pool.execute("DELETE FROM outbox WHERE id = ANY($1)", notes)


# --- What the workflow of a turn begins with: read by whoever delivers its start.


async def workflow_input(tx: Connection, turn_id: str) -> TurnInput | None:
    """What the workflow of an open turn starts with; None where the turn is gone, queued or has ended."""
    row = await tx.fetchrow("SELECT * FROM turns WHERE id = $1", turn_id)
    if row is None or row["ended_at"] is not None or row["status"] == TurnStatus.QUEUED.value:
        return None
    address = TurnAddress(
        tenant_id=row["tenant_id"], conversation_id=str(row["conversation_id"]), turn_id=str(row["id"])
    )
    stopped = row["stop_requested_at"] is not None
    return TurnInput(
        address=address,
        agent_id=row["agent_id"],
        agent_version=row["agent_version"],
        topology=row["topology"],
        routing=Routing.model_validate(row["routing"]),
        carried=Carried(state={}, requests=(), stop=True) if stopped else None,
    )
