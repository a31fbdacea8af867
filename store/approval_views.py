"""Approvals as a reviewer sees them: the exact call, its owner, its deadline, who decides, its history."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import asyncpg

from contracts.approvals import ApprovalStatus
from contracts.errors import CallerError
from contracts.people import RequestKind
from policy.credentials import OWN, Credential
from policy.decision import Decider, not_open_to
from policy.outdated import runs_by
from policy.seats import DECIDING_ROLES
from store.approval_card import ALLOWED, brief_of, card_of, frozen_of, votes_of
from store.database import Connection
from store.in_force import outdated
from store.narrowing import Narrowing
from store.paging import cursor_after, read_cursor
from store.reviews import facts_of, seated

_OVERDUE = "a.expires_at <= now() AND (a.on_timeout = 'deny' OR a.escalated_at IS NOT NULL)"
STATUS_NOW = f"CASE WHEN a.status = 'pending' AND {_OVERDUE} THEN 'expired' ELSE a.status END"
"""Past its last deadline nobody may decide any more, whether the expiry has been written down or not."""
# The same, said so that an index finds the few that wait among all that were ever decided: none goes by an expression.
OPEN = f"(a.status = 'pending' AND NOT ({_OVERDUE}))"
_EXPIRED = f"(a.status IN ('pending', 'expired') AND {STATUS_NOW} = 'expired')"
_OVER = frozenset(ApprovalStatus) - {ApprovalStatus.PENDING, ApprovalStatus.EXPIRED}
"""Statuses that nothing but the row says."""
_COLUMNS = f"""
a.*, {STATUS_NOW} AS status_now, clock_timestamp() AS now, r.name AS requester, d.name AS decider,
  'admin' = ANY(r.roles) AS requester_is_admin,
  s.name AS assigned, c.name AS claimer,
  (SELECT jsonb_agg(jsonb_build_object('user', v.user_id, 'created_by', v.created_by,
     'signed_in', coalesce(v.record->'signed_in', '{{}}'), 'seat', v.seat_id, 'by', b.name, 'owner', o.name,
     'decision', v.decision, 'at', v.at, 'comment', coalesce(v.record->>'comment', ''),
     'named', a.reviewers = '{{}}' OR o.name = ANY(a.reviewers),
     'counts', o.disabled_at IS NULL AND v.role = ANY(o.roles) AND b.disabled_at IS NULL AND v.role = ANY(b.roles))
     ORDER BY v.id)
   FROM approval_votes v JOIN users b ON b.id = v.user_id JOIN users o ON o.id = v.seat_id
   WHERE v.approval_id = a.id AND v.voided_at IS NULL) AS votes
"""
_FROM = """
FROM approvals a JOIN users r ON r.id = a.requested_by LEFT JOIN users d ON d.id = a.decided_by
  LEFT JOIN users s ON s.id = a.assignee LEFT JOIN users c ON c.id = a.claimed_by
"""
MOST_OF_HISTORY = 200
"""The latest; the audit has all of it, in pages."""
_ONE = f"""
SELECT {_COLUMNS}, (SELECT jsonb_agg(jsonb_build_object('what', h.kind, 'at', h.at, 'by', u.name,
  'data', coalesce(h.data, '{{}}')) ORDER BY h.id)
  FROM (SELECT * FROM audit_trail t WHERE t.subject = a.id::text ORDER BY t.id DESC LIMIT {MOST_OF_HISTORY}) h
    LEFT JOIN users u ON u.id = h.actor) AS history
{_FROM} WHERE a.id = $1 AND ($2::uuid IS NULL OR a.requested_by = $2)
"""
OPEN_TO = """((a.requested_by <> ALL({0}::uuid || {1}::uuid[]) OR a.allow_self_approval)
  AND a.reviewer_role = ANY(ARRAY(SELECT unnest(m.roles) FROM users m WHERE m.id = {0} AND m.disabled_at IS NULL))
  AND EXISTS (SELECT FROM users u WHERE u.disabled_at IS NULL AND a.reviewer_role = ANY(u.roles)
    AND (u.id <> a.requested_by OR a.allow_self_approval)
    AND (a.reviewers = '{{}}' OR u.name = ANY(a.reviewers) OR u.id = a.assignee)
    AND u.id = ANY(ARRAY(SELECT {0}::uuid UNION ALL SELECT g.user_id FROM delegations g
      WHERE g.to_user = {0} AND g.ended_at IS NULL AND g.until > now()))))
"""
"""In a seat that this person ({0}) has or stands in for, signed in by a credential that {1} created."""
# Where one vote decides, whatever still waits has none: only the others are asked for their votes.
VOTED = """(a.quorum > 1 AND EXISTS (
  SELECT FROM approval_votes v WHERE v.approval_id = a.id AND v.user_id = {0} AND v.voided_at IS NULL))
"""


@dataclass(frozen=True, slots=True)
class Filters:
    """What a list is narrowed by; None does not narrow."""

    status: str | None = None
    agent: str | None = None
    tool: str | None = None
    risk: str | None = None
    turn_id: str | None = None
    role: str | None = None
    assignee: str | None = None
    """A user's name."""
    requested_by: str | None = None
    decidable_by: str | None = None
    """A user: what this user may decide now."""
    signed_in_by: Credential = OWN
    """What that user is signed in by."""
    expiring_within_seconds: int | None = None


async def listed(
    tx: Connection,
    filters: Filters,
    limit: int,
    cursor: str | None,
    viewer: Decider | None = None,
    *,
    brief: bool = False,
) -> tuple[list[dict[str, object]], str | None]:
    """Approvals, newest first, with what `viewer` may decide of each; `brief` leaves out whatever may be long."""
    rows = await tx.fetch(*_page(filters, limit, cursor))
    last = rows[limit - 1] if len(rows) > limit else None
    sitting = await seated(tx, viewer) if viewer is not None and rows else None
    changed = await _changed(tx, rows[:limit])
    shown = [_shown(row, sitting, changed) for row in rows[:limit]]
    if brief:
        shown = [brief_of(card) for card in shown]
    return shown, cursor_after(last["requested_at"], str(last["id"])) if last else None


def _page(filters: Filters, limit: int, cursor: str | None) -> tuple[str, *tuple[object, ...]]:
    """The statement of one page and one row more, with its parameters."""
    only = Narrowing()
    if filters.status == "pending" or filters.decidable_by or filters.expiring_within_seconds is not None:
        only.by(OPEN)
    if filters.status == "expired":
        only.by(_EXPIRED)
    elif filters.status != "pending":
        only.being("a.status", filters.status, _OVER)
    only.by("a.agent_id = {0}", filters.agent)
    only.by("a.tool = {0}", filters.tool)
    only.by("a.risk = {0}", filters.risk)
    only.by("a.turn_id = {0}", filters.turn_id)
    only.by("a.reviewer_role = {0}", filters.role)
    only.by("s.name = {0}", filters.assignee)
    only.by("a.requested_by = {0}", filters.requested_by)
    only.by(f"{OPEN_TO} AND NOT {VOTED}", filters.decidable_by, filters.signed_in_by.created_by)
    only.by("a.expires_at < now() + make_interval(secs => {0})", filters.expiring_within_seconds)
    only.by("(a.requested_at, a.id) < ({0}, {1}::uuid)", *read_cursor(cursor))
    most = only.parameter(limit + 1)
    return f"SELECT {_COLUMNS} {_FROM} {only} ORDER BY a.requested_at DESC, a.id DESC LIMIT {most}", *only.given


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
    return _shown(row, sitting, await _changed(tx, [row])) | {
        "snapshot": row["snapshot"],
        "preview": _preview(row) if viewer is None or viewer.roles & DECIDING_ROLES else None,
        "history": row["history"] or [],
    }


async def _changed(tx: Connection, rows: Sequence[asyncpg.Record]) -> dict[str, str]:
    return await outdated(tx, [row for row in rows if row["status_now"] != "expired"])


def _shown(row: asyncpg.Record, viewer: Decider | None, changed: Mapping[str, str]) -> dict[str, object]:
    why = changed.get(str(row["id"]))
    barred = runs_by(row["kind"], row["tool"]) if why is not None else ()
    return card_of(row, [each for each in _allowed(row, viewer) if each not in barred], why)


def _preview(row: asyncpg.Record) -> dict[str, object] | None:
    """What a look at the target found; it may be of other arguments than those that are decided on, or ran."""
    found = row["preview"]
    if not found:
        return None if found is None else {}
    digest = frozen_of(row)["digest"]
    kept = {name: found.get(name) for name in ("at", "before", "after", "fault")}
    return kept | {"is_current": found.get("digest", digest) == digest}


def _allowed(row: asyncpg.Record, viewer: Decider | None) -> list[str]:
    """What may be decided; an answer has no arguments to edit, and a limit is raised by a route of its own."""
    if row["status_now"] != "pending":
        return []
    if viewer is not None and not_open_to(facts_of(row, votes_of(row)), viewer) is not None:
        return []
    if row["kind"] == RequestKind.LIMIT:
        return ["reject"]
    return [each for each in ALLOWED if each != "edit" or row["tool"]]
