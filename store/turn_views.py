"""Turns as clients see them."""

import asyncpg

from contracts.errors import CallerError
from store.database import Connection
from store.paging import cursor_after, read_cursor

# Of an erased person's turn nobody knows them any more.
_TOLD = (
    "ARRAY(SELECT e.data->>'node' FROM events e WHERE e.turn_id = t.id AND e.kind = 'node_end' "
    "AND e.data->>'node' IS NOT NULL ORDER BY e.seq) AS nodes, "
    "(SELECT coalesce(e.data->>'turn_seconds', e.data->>'seconds')::float FROM events e "
    "WHERE e.turn_id = t.id AND e.kind = 'ttft' ORDER BY e.seq LIMIT 1) AS ttft_seconds, "
    "CASE WHEN t.ended_at IS NOT NULL THEN "
    "(SELECT e.data->>'left_over' FROM events e WHERE e.turn_id = t.id AND e.kind = 'done') END AS left_over"
)

# The deadline is the one in force: an escalation, or a decision on one of several, has moved it since the pause began.
WAITS_FOR = """
CASE WHEN t.waiting IS NOT NULL THEN t.waiting || jsonb_build_object('expires_at', (
  SELECT to_char(min(o.expires_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"') FROM (
    SELECT expires_at FROM approvals WHERE turn_id = t.id AND status = 'pending' UNION ALL
    SELECT expires_at FROM questions WHERE turn_id = t.id AND status = 'pending') o)) END AS waits_for
"""


async def get(tx: Connection, turn_id: str, user_id: str | None) -> dict[str, object]:
    """The turn, if it is this user's (None: anybody's of the tenant).

    Raises: CallerError 404 `turn_not_found`.
    """
    row = await tx.fetchrow(
        f"SELECT t.*, {WAITS_FOR}, {_TOLD} FROM turns t WHERE t.id = $1 AND ($2::uuid IS NULL OR t.user_id = $2)",
        turn_id,
        user_id,
    )
    if row is None:
        raise CallerError("turn_not_found", "there is no such turn", status=404)
    return shown(row)


async def listed(
    tx: Connection,
    user_id: str | None,
    *,
    status: str | None,
    agent: str | None,
    conversation_id: str | None,
    limit: int,
    cursor: str | None,
) -> tuple[list[dict[str, object]], str | None]:
    """Turns, newest first."""
    at, last_id = read_cursor(cursor)
    rows = await tx.fetch(
        f"SELECT t.*, {WAITS_FOR}, {_TOLD} FROM turns t WHERE ($1::uuid IS NULL OR t.user_id = $1) "
        "AND ($2::text IS NULL OR t.status = $2) AND ($3::text IS NULL OR t.agent_id = $3) "
        "AND ($4::uuid IS NULL OR t.conversation_id = $4) "
        "AND ($5::timestamptz IS NULL OR (t.created_at, t.id) < ($5, $6::uuid)) "
        "ORDER BY t.created_at DESC, t.id DESC LIMIT $7",
        user_id,
        status,
        agent,
        conversation_id,
        at,
        last_id,
        limit + 1,
    )
    following = cursor_after(rows[limit - 1]["created_at"], str(rows[limit - 1]["id"])) if len(rows) > limit else None
    return [shown(row) for row in rows[:limit]], following


def shown(row: asyncpg.Record) -> dict[str, object]:
    """A turn's row in the form of the outside contract."""
    tokens = row["input_tokens"] + row["output_tokens"]
    return {
        "turn_id": str(row["id"]),
        "conversation_id": str(row["conversation_id"]),
        "agent": row["agent_id"],
        "agent_version": row["agent_version"],
        "topology": row["topology"],
        "status": row["status"],
        "answer": row["answer"],
        "output": row["output"],
        "error": row["problem"],
        "usage": {
            "input_tokens": row["input_tokens"],
            "output_tokens": row["output_tokens"],
            "cached_tokens": row["cached_tokens"],
            "tokens_used": tokens,
            "cost_usd": row["cost_microusd"] / 1e6,
        },
        "waiting_for": row["waits_for"],
        "ttft_seconds": row["ttft_seconds"],
        "ttr_seconds": (row["ended_at"] - row["created_at"]).total_seconds() if row["ended_at"] else None,
        "nodes": list(row["nodes"]),
        "attempts": row["attempts"],
        "metadata": row["metadata"],
        "stop_requested_at": row["stop_requested_at"],
        "replaced_by": str(row["replaced_by"]) if row["replaced_by"] else None,
        "left_over": row["left_over"],
        "created_at": row["created_at"],
        "started_at": row["started_at"],
        "ended_at": row["ended_at"],
        "events": f"/v1/turns/{row['id']}/events",
    }
