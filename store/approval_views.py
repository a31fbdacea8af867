"""Approvals as a reviewer sees them: the exact call, its owner, its deadline, its history."""

from dataclasses import dataclass

import asyncpg

from contracts.errors import CallerError
from contracts.people import RequestKind
from store.checkpoints import call_told_of
from store.database import Connection
from store.paging import cursor_after, read_cursor

ALLOWED = ("approve", "edit", "reject", "respond")
_STATUS = "CASE WHEN a.status = 'pending' AND a.expires_at <= now() THEN 'expired' ELSE a.status END"
"""Past its deadline nobody may decide any more, whether the expiry has been written down or not."""
_SELECT = (
    f"SELECT a.*, {_STATUS} AS status_now, r.name AS requester, d.name AS decider FROM approvals a "
    "JOIN users r ON r.id = a.requested_by LEFT JOIN users d ON d.id = a.decided_by"
)


@dataclass(frozen=True, slots=True)
class Filters:
    """What a list is narrowed by; None does not narrow."""

    status: str | None = None
    agent: str | None = None
    tool: str | None = None
    turn_id: str | None = None
    role: str | None = None
    requested_by: str | None = None
    decidable_by: str | None = None
    """A user: what this user may decide now."""
    roles: tuple[str, ...] = ()
    """That user's roles."""
    expiring_within_seconds: int | None = None


async def listed(
    tx: Connection, filters: Filters, limit: int, cursor: str | None
) -> tuple[list[dict[str, object]], str | None]:
    """Approvals, newest first."""
    at, last_id = read_cursor(cursor)
    rows = await tx.fetch(
        f"{_SELECT} WHERE ($1::text IS NULL OR {_STATUS} = $1) AND ($2::text IS NULL OR a.agent_id = $2) "
        "AND ($3::text IS NULL OR a.tool = $3) AND ($4::uuid IS NULL OR a.turn_id = $4) "
        "AND ($5::text IS NULL OR a.reviewer_role = $5) AND ($6::uuid IS NULL OR a.requested_by = $6) "
        f"AND ($7::uuid IS NULL OR ({_STATUS} = 'pending' AND a.reviewer_role = ANY($12) "
        "AND (a.requested_by <> $7 OR a.allow_self_approval))) "
        f"AND ($8::int IS NULL OR ({_STATUS} = 'pending' AND a.expires_at < now() + make_interval(secs => $8))) "
        "AND ($9::timestamptz IS NULL OR (a.requested_at, a.id) < ($9, $10::uuid)) "
        "ORDER BY a.requested_at DESC, a.id DESC LIMIT $11",
        filters.status,
        filters.agent,
        filters.tool,
        filters.turn_id,
        filters.role,
        filters.requested_by,
        filters.decidable_by,
        filters.expiring_within_seconds,
        at,
        last_id,
        limit + 1,
        list(filters.roles),
    )
    last = rows[limit - 1] if len(rows) > limit else None
    return [_shown(row) for row in rows[:limit]], cursor_after(last["requested_at"], str(last["id"])) if last else None


async def get(tx: Connection, approval_id: str, requester_id: str | None) -> dict[str, object]:
    """One approval with its history; with `requester_id` only that user's own.

    Raises: CallerError 404 `approval_not_found`.
    """
    row = await tx.fetchrow(
        f"{_SELECT} WHERE a.id = $1 AND ($2::uuid IS NULL OR a.requested_by = $2)", approval_id, requester_id
    )
    if row is None:
        raise CallerError("approval_not_found", "there is no such approval", status=404)
    history = await tx.fetch(
        "SELECT h.kind, h.at, h.data, u.name AS actor FROM audit h LEFT JOIN users u ON u.id = h.actor "
        "WHERE h.subject = $1 ORDER BY h.id",
        approval_id,
    )
    return _shown(row) | {
        "snapshot": row["snapshot"],
        "history": [{"what": h["kind"], "at": h["at"], "by": h["actor"], "data": h["data"]} for h in history],
    }


def _shown(row: asyncpg.Record) -> dict[str, object]:
    return {
        "id": str(row["id"]),
        "status": row["status_now"],
        "agent": row["agent_id"],
        "kind": row["kind"],
        "tool": row["tool"],
        "effect": row["effect"],
        "risk": row["risk"],
        "description": row["description"],
        "args": row["args"],
        "schema": row["schema"],
        "digest": row["digest"],
        "rule": row["rule"],
        "checkpoint": row["checkpoint"],
        "reason": row["reason"],
        "result": row["result"],
        "prompt_excerpt": row["prompt_excerpt"],
        "turn_id": str(row["turn_id"]),
        "conversation_id": str(row["conversation_id"]),
        "call_id": call_told_of(row["kind"], row["call_id"]),
        "requested_by": row["requester"],
        "requested_at": row["requested_at"],
        "expires_at": row["expires_at"],
        "on_timeout": "deny",
        "reviewer_role": row["reviewer_role"],
        "allowed_decisions": _allowed(row) if row["status_now"] == "pending" else [],
        "version": row["version"],
        "decision": row["decision"],
        "decided_by": row["decider"],
        "decided_at": row["decided_at"],
    }


def _allowed(row: asyncpg.Record) -> list[str]:
    """What may be decided; an answer has no arguments to edit, and a limit is raised by a route of its own."""
    if row["kind"] == RequestKind.LIMIT:
        return ["reject"]
    return [each for each in ALLOWED if each != "edit" or row["tool"]]
