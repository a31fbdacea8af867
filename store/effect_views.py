"""Effects as people see them: what may have happened outside, and what is known of it."""

import asyncpg

from contracts.errors import CallerError
from contracts.tools import CallState
from store.database import Connection
from store.narrowing import Narrowing
from store.paging import cursor_after, read_key_cursor

_SELECT = (
    "SELECT c.*, s.name AS settler, clock_timestamp() < c.quiet_at AS early FROM tool_calls c "
    "JOIN turns t ON t.id = c.turn_id LEFT JOIN users s ON s.id = c.settled_by"
)


async def listed(
    tx: Connection, user_id: str | None, state: str | None, limit: int, cursor: str | None
) -> tuple[list[dict[str, object]], str | None]:
    """Calls that may change something, newest first; with `user_id` only those of that user's turns."""
    rows = await tx.fetch(*_page(user_id, state, limit, cursor))
    last = rows[limit - 1] if len(rows) > limit else None
    shown = [_shown(row) for row in rows[:limit]]
    return shown, cursor_after(last["created_at"], last["key"]) if last else None


def _page(user_id: str | None, state: str | None, limit: int, cursor: str | None) -> tuple[str, *tuple[object, ...]]:
    """The statement of one page and one row more, with its parameters."""
    only = Narrowing("c.effect <> 'read'")
    only.being("c.state", state, frozenset(CallState))
    only.by("t.user_id = {0}", user_id)
    # The calls of a round are written in one moment; the key tells them apart.
    only.by("(c.created_at, c.key) < ({0}, {1})", *read_key_cursor(cursor))
    most = only.parameter(limit + 1)
    return f"{_SELECT} {only} ORDER BY c.created_at DESC, c.key DESC LIMIT {most}", *only.given


async def get(tx: Connection, key: str, user_id: str | None) -> dict[str, object]:
    """One effect with all that is known of it; with `user_id` only of that user's turns.

    Raises: CallerError 404 `effect_not_found`.
    """
    row = await tx.fetchrow(
        f"{_SELECT} WHERE c.key = $1 AND c.effect <> 'read' AND ($2::uuid IS NULL OR t.user_id = $2)", key, user_id
    )
    if row is None:
        raise CallerError("effect_not_found", "there is no such effect", status=404)
    return _shown(row) | {
        # Until the deadline a frozen worker may still send it.
        "may_be_settled_as": ["happened"] + ([] if row["early"] else ["did_not_happen"])
        if row["state"] == "outcome_unknown"
        else [],
        "failed_tries": row["errors"],
        "late_answers": row["lost_settles"],
        "outcome": row["outcome"],
        "approval": await _approval(tx, row),
        "events": await _events(tx, row),
    }


def _shown(row: asyncpg.Record) -> dict[str, object]:
    return {
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


async def _approval(tx: Connection, call: asyncpg.Record) -> dict[str, object] | None:
    """The approval that let it run, with the arguments that were sent where a reviewer changed them."""
    row = await tx.fetchrow(
        "SELECT a.id, a.status, a.decision, a.decided_at, u.name AS decider FROM approvals a "
        "LEFT JOIN users u ON u.id = a.decided_by WHERE a.turn_id = $1 AND a.call_id = $2",
        call["turn_id"],
        call["call_id"],
    )
    if row is None:
        return None
    return {
        "id": str(row["id"]),
        "status": row["status"],
        "decision": row["decision"],
        "decided_by": row["decider"],
        "decided_at": row["decided_at"],
    }


async def _events(tx: Connection, call: asyncpg.Record) -> list[dict[str, object]]:
    """What was told of the call while it ran, oldest first."""
    rows = await tx.fetch(
        "SELECT kind, at, data FROM events WHERE turn_id = $1 AND call_id = $2 ORDER BY seq LIMIT 100",
        call["turn_id"],
        call["call_id"],
    )
    return [dict(row) for row in rows]
