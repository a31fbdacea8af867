"""Wake signals that must not be lost: rows of ids, written in the transaction that causes them.

The process that commits a row can deliver it immediately and remove it. The relay delivers the remaining rows when they
are due.
"""

from dataclasses import dataclass
from enum import StrEnum

from perdure.contracts.turns import Carried, Routing, TurnAddress, TurnInput, TurnStatus
from perdure.graph import registry
from perdure.store.database import Connection, Database

HEAD_START = "1 second"
"""The time that the writer has to deliver its row before the relay does."""


class Wake(StrEnum):
    """The kinds of wake signals."""

    START = "start"
    REQUEST = "ring"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Note:
    """A wake signal for a turn."""

    id: int
    tenant_id: str
    kind: Wake
    turn_id: str
    request_id: str = ""
    begins: TurnInput | None = None
    """The workflow's input, if the writer knows it. The relay reads it from the turn's row."""
    attempts: int = 0
    """The number of times that the relay has claimed it, including this one."""


async def put(tx: Connection, tenant_id: str, kind: Wake, turn_id: str, request_id: str = "") -> Note:
    """Writes a wake signal. The caller should deliver it after the commit."""
    number = await tx.fetchval(
        "INSERT INTO outbox (tenant_id, kind, turn_id, request_id, due_at) "
        f"VALUES ($1, $2, $3, $4, now() + interval '{HEAD_START}') RETURNING id",
        tenant_id,
        kind.value,
        turn_id,
        request_id,
    )
    return Note(number, tenant_id, kind, turn_id, request_id)


async def leave_summary(tx: Connection, tenant_id: str, turn_id: str) -> None:
    """Notes that the summary of an ended turn is missing (`perdure/store/turns/summaries.py`).

    The note is never due, so that it delays no wake signal. A relay of an earlier release ignores it.
    """
    await tx.execute(
        "INSERT INTO outbox (tenant_id, kind, turn_id, due_at) VALUES ($1, $2, $3, 'infinity')",
        tenant_id,
        Wake.REQUEST.value,
        turn_id,
    )


async def delete_delivered(db: Database, note: Note) -> None:
    """Deletes the outbox row of a wake signal after its delivery, so that the relay does not send it again."""
    await db.execute(note.tenant_id, f"DELETE FROM outbox WHERE id = {note.id:d}")


async def claim_due(relay: Database, limit: int = 50) -> list[Note]:
    """Claims due wake signals of all tenants for ten seconds. Only the relay's role can see them. Concurrent relays
    claim different signals."""
    async with relay.without_tenant() as connection:
        rows = await connection.fetch(
            "UPDATE perdure.outbox SET due_at = now() + interval '10 seconds', attempts = attempts + 1 WHERE id IN ("
            "SELECT id FROM perdure.outbox WHERE due_at <= now() ORDER BY due_at, id LIMIT $1 FOR UPDATE SKIP LOCKED) "
            "RETURNING id, tenant_id, kind, turn_id, request_id, attempts",
            limit,
        )
    return [
        Note(r["id"], r["tenant_id"], Wake(r["kind"]), str(r["turn_id"]), r["request_id"], attempts=r["attempts"])
        for r in rows
    ]


async def delete_as_relay(relay: Database, notes: list[int]) -> None:
    """Deletes delivered wake signals with the relay's role."""
    async with relay.without_tenant() as connection:
        await connection.execute("DELETE FROM perdure.outbox WHERE id = ANY($1)", notes)


async def workflow_input(tx: Connection, turn_id: str) -> TurnInput | None:
    """Returns the input of an open turn's workflow. Returns None if the turn does not exist, is queued or has ended.
    The process that delivers the start reads it."""
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
        topology_version=registry.spec(row["topology"]).version,
        routing=Routing.model_validate(row["routing"]),
        carried=Carried(state={}, requests=(), stop=True) if stopped else None,
    )
