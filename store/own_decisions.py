"""A person's decisions, newest first, each with what became of it."""

import asyncpg

from policy.describing import at_a_glance, described
from store.approval_views import STATUS_NOW
from store.database import Connection
from store.narrowing import Narrowing
from store.paging import cursor_after, read_number_cursor

_COLUMNS = f"""
v.id AS vote_id, v.decision, v.at, v.voided_at, v.record, v.seat_id <> v.user_id AS stood_in, o.name AS seat,
  a.id, a.kind, a.checkpoint, a.tool, a.agent_id, a.risk, a.describe, coalesce(a.decision->'args', a.args) AS args,
  {STATUS_NOW} AS status_now, a.ready_at, a.quorum, a.turn_id, a.conversation_id, a.withdrawal, t.status AS turn_status,
  k.state AS call_state, k.outcome, r.name AS requester
"""
_FROM = """
FROM approval_votes v JOIN approvals a ON a.id = v.approval_id JOIN turns t ON t.id = a.turn_id
  JOIN users r ON r.id = a.requested_by JOIN users o ON o.id = v.seat_id
  LEFT JOIN tool_calls k ON k.turn_id = a.turn_id AND k.call_id = a.call_id
"""


async def own_decisions(
    tx: Connection, user_id: str, limit: int, cursor: str | None
) -> tuple[list[dict[str, object]], str | None]:
    """What this person decided, and what came of it."""
    only = Narrowing()
    only.by("v.user_id = {0}", user_id)
    only.by("(v.at, v.id) < ({0}, {1})", *read_number_cursor(cursor))
    most = only.parameter(limit + 1)
    rows = await tx.fetch(f"SELECT {_COLUMNS} {_FROM} {only} ORDER BY v.at DESC, v.id DESC LIMIT {most}", *only.given)
    last = rows[limit - 1] if len(rows) > limit else None
    return [_shown(row) for row in rows[:limit]], cursor_after(last["at"], str(last["vote_id"])) if last else None


def _shown(row: asyncpg.Record) -> dict[str, object]:
    outcome = row["outcome"] or {}
    message = outcome.get("message") or {}
    return {
        "id": str(row["id"]),
        "decision": row["decision"],
        "at": row["at"],
        "comment": row["record"].get("comment") or row["record"].get("reason_code") or "",
        "for": row["seat"] if row["stood_in"] else None,
        "voided_at": row["voided_at"],
        "kind": row["kind"],
        "checkpoint": row["checkpoint"],
        "tool": row["tool"],
        "says": described(row["describe"], row["args"]),
        "args_brief": at_a_glance(row["args"]),
        "agent": row["agent_id"],
        "risk": row["risk"],
        "requested_by": row["requester"],
        "status": row["status_now"],
        "ready_at": row["ready_at"],
        "withdrawal": row["withdrawal"],
        "call_state": row["call_state"],
        "call_result": message.get("text") or "",
        "turn_id": str(row["turn_id"]),
        "conversation_id": str(row["conversation_id"]),
        "turn_status": row["turn_status"],
    }
