"""What the reconciler looks at: open turns that should be moving, paused turns that were decided."""

from dataclasses import dataclass

import asyncpg

from contracts.events import READY
from contracts.turns import TurnAddress, TurnStatus
from store.database import Connection
from store.journal import NewEvent, write
from store.outbox import Wake


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """A turn that has not ended."""

    address: TurnAddress
    status: TurnStatus


async def tenants(relay_pool: asyncpg.Pool) -> list[str]:
    """Every tenant, by the relay's role."""
    rows = await relay_pool.fetch("SELECT tenant_id FROM tenants WHERE tenant_id <> '*' ORDER BY tenant_id")
    return [row["tenant_id"] for row in rows]


async def open_turns(tx: Connection, older_than_seconds: float, *, paused_too: bool = True) -> list[OpenTurn]:
    """Open turns, but for queued ones, for those that have only just begun, and for those that are yet to start.

    A turn whose start is still in the outbox has no workflow and must not be taken for one that lost it.
    """
    rows = await tx.fetch(
        "SELECT id, tenant_id, conversation_id, status FROM turns t WHERE ended_at IS NULL AND status <> 'queued' "
        "AND created_at < now() - make_interval(secs => $1) AND ($2 OR status NOT LIKE 'awaiting%') "
        "AND NOT EXISTS (SELECT FROM outbox o WHERE o.turn_id = t.id AND o.kind = 'start') ORDER BY created_at",
        older_than_seconds,
        paused_too,
    )
    return [
        OpenTurn(
            TurnAddress(
                tenant_id=row["tenant_id"], conversation_id=str(row["conversation_id"]), turn_id=str(row["id"])
            ),
            TurnStatus(row["status"]),
        )
        for row in rows
    ]


async def ring_decided(tx: Connection, tenant_id: str) -> int:
    """Put a bell in the outbox for every turn that still waits though what it waits for is decided or overdue.

    Once a minute at most: a turn whose verdict cannot be read waits on, and need not be asked faster.
    """
    rows = await tx.fetch(
        "WITH rung AS (UPDATE turns t SET rung_at = now() WHERE t.status = 'awaiting_approval' "
        "AND t.ended_at IS NULL AND (t.rung_at IS NULL OR t.rung_at < now() - interval '1 minute') "
        "AND NOT EXISTS (SELECT FROM outbox o WHERE o.turn_id = t.id) "
        "AND NOT EXISTS (SELECT FROM tool_calls c WHERE c.turn_id = t.id AND c.state = 'outcome_unknown') "
        "AND NOT EXISTS (SELECT FROM approvals a WHERE a.turn_id = t.id AND a.status = 'pending' "
        "AND a.expires_at > clock_timestamp()) RETURNING t.id) "
        "INSERT INTO outbox (tenant_id, kind, turn_id) SELECT $1, $2, id FROM rung RETURNING turn_id",
        tenant_id,
        Wake.RING.value,
    )
    return len(rows)


async def start_stranded(tx: Connection, tenant_id: str) -> int:
    """Admit the oldest queued turn of every conversation that has no active one."""
    rows = await tx.fetch(
        "WITH oldest AS (SELECT DISTINCT ON (t.conversation_id) t.id FROM turns t "
        "JOIN conversations c ON c.id = t.conversation_id WHERE t.status = 'queued' AND c.active_turn_id IS NULL "
        "ORDER BY t.conversation_id, t.created_at, t.id), stranded AS (SELECT t.id, t.conversation_id, t.message_id "
        "FROM turns t JOIN oldest USING (id) WHERE t.status = 'queued' FOR UPDATE OF t SKIP LOCKED), "
        "bumped AS (UPDATE conversations c "
        "SET active_turn_id = s.id, message_seq = message_seq + 1 FROM stranded s WHERE c.id = s.conversation_id "
        "AND c.active_turn_id IS NULL RETURNING s.id, s.message_id, c.message_seq), "
        "moved AS (UPDATE messages m SET seq = b.message_seq, in_transcript = true FROM bumped b "
        "WHERE m.id = b.message_id), "
        "begun AS (UPDATE turns t SET status = 'accepted', through_seq = b.message_seq - 1 FROM bumped b "
        "WHERE t.id = b.id RETURNING t.id, t.conversation_id, t.agent_id), "
        "noted AS (INSERT INTO outbox (tenant_id, kind, turn_id) SELECT $1, $2, id FROM begun) "
        "SELECT id, conversation_id, agent_id FROM begun",
        tenant_id,
        Wake.START.value,
    )
    for row in rows:
        address = TurnAddress(tenant_id=tenant_id, conversation_id=str(row["conversation_id"]), turn_id=str(row["id"]))
        await write(tx, address, [NewEvent(READY, {"agent": row["agent_id"]})])
    return len(rows)


async def forget_old_keys(tx: Connection) -> None:
    """Idempotency keys are kept for a day."""
    await tx.execute("DELETE FROM idempotency WHERE created_at < now() - interval '24 hours'")
