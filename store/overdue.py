"""Requests that nobody has decided on: what becomes of them at their deadline, and when it is time for somebody else.

Whoever comes first writes it down: the turn itself, a person who asks, or the reconciler. No turn is woken for it.
"""

from pydantic import JsonValue

from store import audit
from store.database import Connection

ESCALATED = """
  reviewer_role = escalation_role, reviewers = '{}', assignee = NULL, claimed_by = NULL, claimed_until = NULL,
  escalated_at = clock_timestamp(), version = version + 1
"""
"""What an escalation sets, by hand or at the deadline."""
MOST_AT_ONCE = 50
"""Rows of one transaction of the reconciler. Each has an audit row, and the tenant's audit chain is held from the first
to the commit: 500 kept everybody's decisions waiting for half a second (measured)."""

# By an array of ids: joined with its rows, a planner that has not counted them reads the whole table (measured). And by
# now() where many are looked through: no index goes by clock_timestamp().
_OVERDUE = f"""
, up AS (
  UPDATE approvals SET {ESCALATED}, expires_at = clock_timestamp() + make_interval(secs => expires_seconds)
  WHERE id = ANY(ARRAY(SELECT id FROM due)) RETURNING id, turn_id, reviewer_role, expires_at
)
SELECT up.*, due.role_before FROM up JOIN due USING (id)
"""
_ONE = f"""
WITH due AS (SELECT id, reviewer_role AS role_before FROM approvals WHERE id = $1 AND status = 'pending'
  AND on_timeout = 'escalate' AND escalated_at IS NULL AND expires_at <= clock_timestamp())
{_OVERDUE}
"""
_OF_TURN = f"""
WITH due AS (SELECT id, reviewer_role AS role_before FROM approvals WHERE turn_id = $1 AND status = 'pending'
  AND on_timeout = 'escalate' AND escalated_at IS NULL AND expires_at <= clock_timestamp())
{_OVERDUE}
"""
_ALL = f"""
WITH due AS (SELECT a.id, a.reviewer_role AS role_before FROM turns t JOIN approvals a ON a.turn_id = t.id
  WHERE a.status = 'pending' AND a.on_timeout = 'escalate' AND a.escalated_at IS NULL
    AND a.expires_at <= now() AND t.ended_at IS NULL
  ORDER BY a.expires_at LIMIT {MOST_AT_ONCE} FOR UPDATE OF t, a SKIP LOCKED)
{_OVERDUE}
"""
_FALL_BACK = f"""
WITH due AS (
  SELECT a.id FROM turns t JOIN approvals a ON a.turn_id = t.id
  WHERE a.status = 'pending' AND a.fallback_at <= now() AND a.fell_back_at IS NULL
    AND a.expires_at > clock_timestamp() AND (a.claimed_until IS NULL OR a.claimed_until <= clock_timestamp())
    AND t.ended_at IS NULL
  ORDER BY a.fallback_at LIMIT {MOST_AT_ONCE} FOR UPDATE OF t, a SKIP LOCKED
), given AS (
  UPDATE approvals a SET assignee = u.id, claimed_by = NULL, claimed_until = NULL, fell_back_at = clock_timestamp(),
    version = version + 1
  FROM users u WHERE a.id = ANY(ARRAY(SELECT id FROM due)) AND u.name = a.fallback_reviewer AND u.disabled_at IS NULL
    AND a.reviewer_role = ANY(u.roles) AND (u.id <> a.requested_by OR a.allow_self_approval)
  RETURNING a.id, a.turn_id, a.fallback_reviewer, a.reviewer_role, true AS given, false AS escalated
), others AS (
  UPDATE approvals a SET fell_back_at = now(),
    reviewer_role = CASE WHEN a.escalated_at IS NULL THEN a.escalation_role ELSE a.reviewer_role END,
    reviewers = CASE WHEN a.escalated_at IS NULL THEN '{{}}' ELSE a.reviewers END,
    assignee = CASE WHEN a.escalated_at IS NULL THEN NULL ELSE a.assignee END,
    claimed_by = NULL, claimed_until = NULL, escalated_at = coalesce(a.escalated_at, now()),
    version = version + 1
  WHERE a.id = ANY(ARRAY(SELECT id FROM due EXCEPT SELECT id FROM given))
  RETURNING a.id, a.turn_id, a.fallback_reviewer, a.reviewer_role, false, a.escalated_at = a.fell_back_at
)
SELECT * FROM given UNION ALL SELECT * FROM others
"""


async def escalate_overdue(tx: Connection, approval_id: str) -> bool:
    """Give one to its other role if it is past its first deadline and its policy says so. `tx` holds its lock."""
    return bool(await _escalated(tx, _ONE, approval_id))


async def escalate_overdue_of(tx: Connection, turn_id: str) -> int:
    """The same for all of a turn. `tx` holds the turn's lock."""
    return await _escalated(tx, _OF_TURN, turn_id)


async def escalate_all_overdue(tx: Connection) -> int:
    """The same for the tenant, by the reconciler; rows that somebody is at are left for the next pass."""
    return await _escalated(tx, _ALL)


async def fall_back(tx: Connection) -> int:
    """Put what has waited too long, undecided and unclaimed, on the list of its policy's fallback reviewer (S0-81).

    Where that person may not decide on it, it is escalated. By the reconciler; rows that somebody is at are left.
    """
    rows = await tx.fetch(_FALL_BACK)
    for row in rows:
        told: dict[str, JsonValue] = {"fallback": row["fallback_reviewer"], "role": row["reviewer_role"]}
        kind = "approval.escalated" if row["escalated"] else "approval.fell_back"
        why = {} if row["given"] else {"because": "the fallback reviewer may not decide on it"}
        turn_id = str(row["turn_id"])
        await audit.record(tx, kind, str(row["id"]), {**told, **why}, actor=None, turn_id=turn_id)
    return len(rows)


async def _escalated(tx: Connection, statement: str, *given: str) -> int:
    rows = await tx.fetch(statement, *given)
    for row in rows:
        told: dict[str, JsonValue] = {
            "from": row["role_before"],
            "to": row["reviewer_role"],
            "because": "nobody decided in time",
            "expires_at": row["expires_at"].isoformat(),
        }
        turn_id = str(row["turn_id"])
        await audit.record(tx, "approval.escalated", str(row["id"]), told, actor=None, turn_id=turn_id)
    return len(rows)
