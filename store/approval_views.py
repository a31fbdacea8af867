"""Approvals as a reviewer sees them: the exact call, its owner, its deadline, who decides, its history."""

from dataclasses import dataclass

import asyncpg

from contracts.errors import CallerError
from contracts.people import RequestKind
from policy.decision import Decider, not_open_to
from policy.votes import Vote
from store.approval_card import ALLOWED, card_of
from store.database import Connection
from store.paging import cursor_after, read_cursor
from store.reviews import facts_of, seated

STATUS_NOW = (
    "CASE WHEN a.status = 'pending' AND a.expires_at <= now() "
    "AND (a.on_timeout = 'deny' OR a.escalated_at IS NOT NULL) THEN 'expired' ELSE a.status END"
)
"""Past its last deadline nobody may decide any more, whether the expiry has been written down or not."""
_COLUMNS = f"""
a.*, {STATUS_NOW} AS status_now, clock_timestamp() AS now, r.name AS requester, d.name AS decider,
  s.name AS assigned, c.name AS claimer,
  (SELECT jsonb_agg(jsonb_build_object('user', v.user_id, 'seat', v.seat_id, 'by', b.name, 'owner', o.name,
     'decision', v.decision, 'at', v.at, 'comment', v.record->>'comment',
     'counts', o.disabled_at IS NULL AND v.role = ANY(o.roles)) ORDER BY v.id)
   FROM approval_votes v JOIN users b ON b.id = v.user_id JOIN users o ON o.id = v.seat_id
   WHERE v.approval_id = a.id AND v.voided_at IS NULL) AS votes
"""
_FROM = """
FROM approvals a JOIN users r ON r.id = a.requested_by LEFT JOIN users d ON d.id = a.decided_by
  LEFT JOIN users s ON s.id = a.assignee LEFT JOIN users c ON c.id = a.claimed_by
"""
_SEEN = """(a.requested_by = {0} OR EXISTS (SELECT FROM users u JOIN delegations g ON g.user_id = u.id
  WHERE g.to_user = {0} AND g.ended_at IS NULL AND g.until > now() AND u.disabled_at IS NULL
    AND a.reviewer_role = ANY(u.roles) AND (a.reviewers = '{{}}' OR u.name = ANY(a.reviewers) OR u.id = a.assignee)))
"""
"""What somebody sees who may not see all of the tenant's: the own requests, and what a delegated seat decides on."""
_ONE = f"""
SELECT {_COLUMNS}, (SELECT jsonb_agg(jsonb_build_object('what', h.kind, 'at', h.at, 'by', u.name, 'data', h.data)
  ORDER BY h.id) FROM audit_trail h LEFT JOIN users u ON u.id = h.actor WHERE h.subject = a.id::text) AS history
{_FROM} WHERE a.id = $1 AND ($2::uuid IS NULL OR {_SEEN.format("$2")})
"""
_MINE = f"""({STATUS_NOW} = 'pending' AND (a.requested_by <> $7 OR a.allow_self_approval)
  AND EXISTS (SELECT FROM users u WHERE u.disabled_at IS NULL AND a.reviewer_role = ANY(u.roles)
    AND (u.id <> a.requested_by OR a.allow_self_approval)
    AND (a.reviewers = '{{}}' OR u.name = ANY(a.reviewers) OR u.id = a.assignee)
    AND u.id = ANY(ARRAY(SELECT $7::uuid UNION ALL SELECT g.user_id FROM delegations g
      WHERE g.to_user = $7 AND g.ended_at IS NULL AND g.until > now())))
  AND NOT EXISTS (SELECT FROM approval_votes v WHERE v.approval_id = a.id AND v.user_id = $7 AND v.voided_at IS NULL))
"""
_LISTED = f"""
SELECT {_COLUMNS} {_FROM} WHERE ($1::text IS NULL OR {STATUS_NOW} = $1) AND ($2::text IS NULL OR a.agent_id = $2)
AND ($3::text IS NULL OR a.tool = $3) AND ($4::uuid IS NULL OR a.turn_id = $4)
AND ($5::text IS NULL OR a.reviewer_role = $5) AND ($6::uuid IS NULL OR {_SEEN.format("$6")})
AND ($7::uuid IS NULL OR {_MINE})
AND ($8::int IS NULL OR ({STATUS_NOW} = 'pending' AND a.expires_at < now() + make_interval(secs => $8)))
AND ($9::timestamptz IS NULL OR (a.requested_at, a.id) < ($9, $10::uuid))
AND ($12::text IS NULL OR s.name = $12)
ORDER BY a.requested_at DESC, a.id DESC LIMIT $11
"""


@dataclass(frozen=True, slots=True)
class Filters:
    """What a list is narrowed by; None does not narrow."""

    status: str | None = None
    agent: str | None = None
    tool: str | None = None
    turn_id: str | None = None
    role: str | None = None
    assignee: str | None = None
    """A user's name."""
    requested_by: str | None = None
    decidable_by: str | None = None
    """A user: what this user may decide now."""
    expiring_within_seconds: int | None = None


async def listed(
    tx: Connection, filters: Filters, limit: int, cursor: str | None, viewer: Decider | None = None
) -> tuple[list[dict[str, object]], str | None]:
    """Approvals, newest first, with what `viewer` may decide of each."""
    at, last_id = read_cursor(cursor)
    rows = await tx.fetch(
        _LISTED,
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
        filters.assignee,
    )
    last = rows[limit - 1] if len(rows) > limit else None
    sitting = await seated(tx, viewer) if viewer is not None and rows else None
    shown = [card_of(row, allowed(row, sitting)) for row in rows[:limit]]
    return shown, cursor_after(last["requested_at"], str(last["id"])) if last else None


async def get(
    tx: Connection, approval_id: str, requester_id: str | None, viewer: Decider | None = None
) -> dict[str, object]:
    """One approval with its history, and what `viewer` may decide (without one: anybody who may decide at all); with
    `requester_id` only that user's own.

    Raises: CallerError 404 `approval_not_found`.
    """
    row = await tx.fetchrow(_ONE, approval_id, requester_id)
    if row is None:
        raise CallerError("approval_not_found", "there is no such approval", status=404)
    is_open = row["status_now"] == "pending"
    sitting = await seated(tx, viewer) if viewer is not None and is_open else None
    return card_of(row, allowed(row, sitting)) | {
        "snapshot": row["snapshot"],
        "history": row["history"] or [],
    }


def allowed(row: asyncpg.Record, viewer: Decider | None) -> list[str]:
    """What may be decided; an answer has no arguments to edit, and a limit is raised by a route of its own."""
    if row["status_now"] != "pending":
        return []
    votes = [Vote(vote["user"], vote["seat"], vote["counts"]) for vote in row["votes"] or ()]
    if viewer is not None and not_open_to(facts_of(row, votes), viewer) is not None:
        return []
    if row["kind"] == RequestKind.LIMIT:
        return ["reject"]
    return [each for each in ALLOWED if each != "edit" or row["tool"]]
