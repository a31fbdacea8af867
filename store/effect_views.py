"""Effects as people see them: what may have happened outside, and what is known of it."""

from store.database import Connection
from store.paging import cursor_after, read_key_cursor


async def listed(
    tx: Connection, user_id: str | None, state: str | None, limit: int, cursor: str | None
) -> tuple[list[dict[str, object]], str | None]:
    """Calls that may change something, newest first; with `user_id` only those of that user's turns."""
    at, last_key = read_key_cursor(cursor)
    rows = await tx.fetch(
        "SELECT c.*, s.name AS settler FROM tool_calls c JOIN turns t ON t.id = c.turn_id "
        "LEFT JOIN users s ON s.id = c.settled_by WHERE c.effect <> 'read' AND ($1::text IS NULL OR c.state = $1) "
        "AND ($2::uuid IS NULL OR t.user_id = $2) "
        # The calls of a round are written in one moment; the key tells them apart.
        "AND ($3::timestamptz IS NULL OR (c.created_at, c.key) < ($3, $4)) "
        "ORDER BY c.created_at DESC, c.key DESC LIMIT $5",
        state,
        user_id,
        at,
        last_key,
        limit + 1,
    )
    last = rows[limit - 1] if len(rows) > limit else None
    shown: list[dict[str, object]] = [
        {
            "key": row["key"],
            "state": row["state"],
            "tool": row["tool"],
            "effect": row["effect"],
            "args": row["args"],
            "agent": row["agent_id"],
            "turn_id": str(row["turn_id"]),
            "call_id": row["call_id"],
            "attempts": row["epoch"],
            "first_sent_at": row["first_sent_at"],
            "deadline": row["quiet_at"],
            "settled_at": row["settled_at"],
            "settled_by": row["settler"],
            "comment": row["comment"],
            "created_at": row["created_at"],
        }
        for row in rows[:limit]
    ]
    return shown, cursor_after(last["created_at"], last["key"]) if last else None
