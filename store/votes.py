"""Taking a decision: one conditional UPDATE with its vote and its doorbell, whichever kind of request it is about."""

from dataclasses import dataclass

from pydantic import JsonValue

from contracts.errors import CallerError, InvariantBroken
from policy.decision import Decision
from policy.quorum import PENDING
from store.database import Connection
from store.outbox import HEAD_START, Note, Wake
from store.reviews import Review

# Whoever waits for a lock sees only the locked row as it is now: role, delegation and deadline are looked at once more
# by the statement that takes the decision, which begins after the lock was got.
_CAST = f"""
WITH recent AS (
  SELECT count(*) AS taken, min(at) AS since FROM (
    SELECT at FROM approval_votes WHERE user_id = $5 AND at > clock_timestamp() - interval '1 minute'
    ORDER BY at DESC LIMIT coalesce($11::int, 0)) latest
), cast_now AS (
  UPDATE approvals a SET status = $2, version = version + 1, claimed_by = NULL, claimed_until = NULL,
    decision = CASE WHEN $2 = 'pending' THEN decision ELSE $3::jsonb || jsonb_build_object('at', clock_timestamp()) END,
    decided_by = CASE WHEN $2 = 'pending' THEN decided_by ELSE $5::uuid END,
    decided_at = CASE WHEN $2 = 'pending' THEN decided_at ELSE clock_timestamp() END,
    ready_at = CASE WHEN $9::int > 0 AND $2 <> 'pending' THEN clock_timestamp() + make_interval(secs => $9) END,
    revision = coalesce($4::jsonb, revision)
  WHERE id = $1 AND status = 'pending' AND expires_at > clock_timestamp()
    AND ($11::int IS NULL OR (SELECT taken FROM recent) < $11)
    AND (SELECT bool_and(u.disabled_at IS NULL AND a.reviewer_role = ANY(u.roles)) FROM users u WHERE u.id IN ($5, $6))
    AND ($5 = $6 OR EXISTS (SELECT FROM delegations d WHERE d.user_id = $6 AND d.to_user = $5 AND d.ended_at IS NULL
      AND d.until > clock_timestamp()))
  RETURNING id, tenant_id, turn_id, reviewer_role, version, ready_at
), void AS (
  UPDATE approval_votes v SET voided_at = clock_timestamp() FROM cast_now c
  WHERE v.approval_id = c.id AND v.voided_at IS NULL AND $7 = 'edit'
), voted AS (
  INSERT INTO approval_votes (tenant_id, approval_id, user_id, seat_id, role, decision, digest, record, created_by)
  SELECT tenant_id, id, $5, $6, reviewer_role, $7, $8, $3, $12::uuid[] FROM cast_now
), noted AS (
  INSERT INTO outbox (tenant_id, kind, turn_id, request_id, due_at)
  SELECT tenant_id, $10, turn_id, id::text, coalesce(ready_at, now() + interval '{HEAD_START}')
  FROM cast_now WHERE $2 <> 'pending' RETURNING id
)
SELECT (SELECT version FROM cast_now), (SELECT ready_at FROM cast_now) IS NOT NULL AS held,
  (SELECT id FROM noted) AS note, taken >= $11 AS too_many,
  ceil(extract(epoch FROM since + interval '1 minute' - clock_timestamp()))::int AS wait_seconds,
  (SELECT expires_at <= clock_timestamp() FROM approvals WHERE id = $1) AS overdue
FROM recent
"""


@dataclass(frozen=True, slots=True)
class Ballot:
    """A decision that nothing refuses, as it is to be recorded."""

    decision: Decision
    status: str
    """The approval's status once it counts; `pending` where others must decide, too."""
    digest: str
    """Of the call that it is for: after an edit, of the edited one."""
    record: dict[str, JsonValue]
    revision: dict[str, JsonValue] | None = None
    """The call as it was frozen anew, where it is still to be decided on."""
    hold_seconds: int = 0


@dataclass(frozen=True, slots=True)
class Cast:
    """What became of it."""

    version: int
    note: Note | None
    """The turn's doorbell to ring now; None where it is not decided, or rings at the end of a hold."""


async def cast(tx: Connection, review: Review, ballot: Ballot, per_minute: int | None = None) -> Cast:
    """Count this decision: vote, approval and doorbell in one statement; `tx` holds the locks of `review`.

    Raises: CallerError 429 `too_many_decisions`; 410 or 403 where the deadline or the role has just gone.
    """
    row = await tx.fetchrow(
        _CAST,
        review.approval_id,
        ballot.status,
        ballot.record,
        ballot.revision,
        review.decider.user_id,
        review.seat.user_id,
        ballot.decision.value,
        ballot.digest,
        ballot.hold_seconds if ballot.status != PENDING else 0,
        Wake.RING.value,
        per_minute,
        review.decider.credential.created_by,
    )
    if row is None:
        raise InvariantBroken("no_answer", "the statement that counts a decision always answers")
    if row["version"] is None:
        raise _refused(review, overdue=row["overdue"], too_many=row["too_many"], wait_seconds=row["wait_seconds"])
    address, note = review.address, None
    if row["note"] is not None and not row["held"]:
        note = Note(row["note"], address.tenant_id, Wake.RING, address.turn_id, review.approval_id)
    return Cast(row["version"], note)


def _refused(review: Review, *, overdue: bool, too_many: bool | None, wait_seconds: int | None) -> CallerError:
    if overdue:
        return CallerError("approval_expired", "the approval expired undecided and counts as denied", status=410)
    if too_many:
        return CallerError(
            "too_many_decisions",
            "you have decided on many within a minute; take the time to look",
            {"retry_after_seconds": max(1, wait_seconds or 1)},
            status=429,
        )
    role = review.facts.reviewer_role
    return CallerError("role_required", f"deciding needs the role {role}, now", {"role": role}, status=403)
