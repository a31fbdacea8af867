"""Assignment claims, reassignments, withdrawals and delegations. Claims are leases by the database's clock."""

from contextlib import suppress
from datetime import UTC, datetime

from pydantic import JsonValue

from perdure.contracts.errors import CallerError
from perdure.contracts.events import TOOL_DENIED
from perdure.core.approvals.assignments import (
    reassigner_refusal,
    reassignment_refusal,
    release_refusal,
    reviewers_after,
    withdrawal_refusal,
)
from perdure.core.approvals.decisions import Decider, Reviewer, claim_span, delegated_roles, participation_refusal
from perdure.core.identity import Credential
from perdure.store import audit
from perdure.store.approvals.requests import event_call_id, refusal_data
from perdure.store.approvals.review import ESCALATED, Review, lock_for_review
from perdure.store.database import Connection, new_id
from perdure.store.delivery.outbox import Note, Wake, put
from perdure.store.events.event_log import NewEvent, write
from perdure.store.paging import cursor_after, read_cursor

MAX_DAYS = 90


async def claim(tx: Connection, approval_id: str, decider: Decider, seconds: int) -> Review:
    """Claims a request for `seconds` from now, so that no other reviewer decides. The same reviewer can extend the
    claim, up to one hour in total.

    Raises: CallerError 404, 403, 409 decided, 410, 409 `already_voted`, 409 `claimed`, 409 `turn_stopped`, 409
    `claimed_too_long`.
    """
    review = await lock_for_review(tx, approval_id, decider)
    refused = participation_refusal(review.record, review.decider)
    if refused is not None:
        raise refused
    review.refuse_stopped()
    since, until = claim_span(review.record.claim, decider.user_id, review.record.now, seconds)
    await tx.execute(
        "UPDATE approvals SET claimed_by = $2, claimed_since = $3, claimed_until = $4, version = version + 1 "
        "WHERE id = $1",
        approval_id,
        decider.user_id,
        since,
        until,
    )
    data: dict[str, JsonValue] = {"until": until.isoformat()}
    await audit.record(tx, "approval.claimed", approval_id, data, actor=decider.user_id, turn_id=review.address.turn_id)
    return review


async def release(tx: Connection, approval_id: str, decider: Decider) -> Review:
    """Ends a claim before it expires. Reviewers can end their own claims, admins can end any.

    Raises: CallerError 404, 403, 409 decided, 410, 409 `not_claimed`, 409 `claimed`.
    """
    review = await lock_for_review(tx, approval_id, decider)
    refused = release_refusal(review.record, review.decider)
    if refused is not None:
        raise refused
    await tx.execute(
        # The claimer stays in the row, so that a new claim by the same user continues the same lease.
        "UPDATE approvals SET claimed_until = clock_timestamp(), version = version + 1 WHERE id = $1",
        approval_id,
    )
    was = review.record.claim
    data: dict[str, JsonValue] = {"was_claimed_by": was.name if was else ""}
    await audit.record(
        tx, "approval.released", approval_id, data, actor=decider.user_id, turn_id=review.address.turn_id
    )
    return review


async def reassign(tx: Connection, approval_id: str, decider: Decider, to: str, comment: str) -> Review:
    """Assigns the request to the user named `to`. Other reviewers can still decide. A named reviewer who reassigns is
    replaced by that user.

    Raises: CallerError 404, 403, 409 decided, 410, 409 `claimed`, 409 `already_voted`, 409 `turn_stopped`, 422
    `cannot_decide`.
    """
    review = await _lock_for_reassignment(tx, approval_id, decider)
    row = await tx.fetchrow("SELECT id, name, roles FROM users WHERE name = $1 AND disabled_at IS NULL", to)
    if row is None:
        raise CallerError(
            "cannot_decide",
            "The request cannot be assigned: the user does not exist or the account is closed",
            {"to": to},
            status=422,
        )
    given_to = Reviewer(str(row["id"]), row["name"], frozenset(row["roles"]))
    refused = reassignment_refusal(review.record, given_to)
    if refused is not None:
        raise refused
    reviewers = reviewers_after(review.record, review.decider, given_to)
    await tx.execute(
        # The claimer stays in the row, so that a new claim by the same user continues the same lease.
        "UPDATE approvals SET assignee = $2, reviewers = $3, claimed_until = least(claimed_until, clock_timestamp()), "
        "version = version + 1 WHERE id = $1",
        approval_id,
        given_to.user_id,
        list(reviewers),
    )
    data: dict[str, JsonValue] = {"to": given_to.name, "comment": comment}
    if reviewers != review.record.reviewers:
        data |= {"reviewers": list(reviewers), "reviewers_before": list(review.record.reviewers)}
    await _record(tx, review, "approval.reassigned", data)
    return review


async def escalate(tx: Connection, approval_id: str, decider: Decider, comment: str) -> Review:
    """Escalates the request to the other role of its policy, once. The deadline does not change, and the request is
    denied then.

    Raises: CallerError 404, 403, 409 decided, 410, 409 `claimed`, 409 `already_voted`, 409 `turn_stopped`, 409
    `already_escalated`.
    """
    review = await _lock_for_reassignment(tx, approval_id, decider)
    row = review.row
    if row["escalated_at"] is not None:
        details: dict[str, object] = {"escalated_at": row["escalated_at"], "role": row["reviewer_role"]}
        raise CallerError(
            "already_escalated",
            "This request was already escalated; a request can be escalated once",
            details,
            status=409,
        )
    await tx.execute(f"UPDATE approvals SET {ESCALATED} WHERE id = $1", approval_id)
    data: dict[str, JsonValue] = {"from": row["reviewer_role"], "to": row["escalation_role"], "comment": comment}
    await _record(tx, review, "approval.escalated", data)
    return review


async def _lock_for_reassignment(tx: Connection, approval_id: str, decider: Decider) -> Review:
    """Returns the locked approval if this user can reassign it."""
    review = await lock_for_review(tx, approval_id, decider)
    refused = reassigner_refusal(review.record, review.decider)
    if refused is not None:
        raise refused
    review.refuse_stopped()
    return review


async def _record(tx: Connection, review: Review, kind: str, data: dict[str, JsonValue]) -> None:
    await audit.record(tx, kind, review.approval_id, data, actor=review.decider.user_id, turn_id=review.address.turn_id)


_DECIDERS = "SELECT user_id FROM approval_votes WHERE approval_id = $1 AND voided_at IS NULL"
_WITHDRAW = """
UPDATE approvals SET status = 'withdrawn', withdrawal = $2::jsonb || jsonb_build_object('at', clock_timestamp()),
  closed_at = clock_timestamp(), claimed_by = NULL, claimed_until = NULL, version = version + 1 WHERE id = $1
"""


async def withdraw(tx: Connection, approval_id: str, decider: Decider, comment: str) -> tuple[Review, Note]:
    """Withdraws a request, or an approval whose call is not reserved. The returned note wakes the turn.

    It locks the turn's row, as the claim of the call does, so that only one of the two succeeds.

    Raises: CallerError 404, 403, 409 `already_running`, 409 decided, 410, 409 `turn_stopped`.
    """
    review = await lock_for_review(tx, approval_id, decider)
    votes = await tx.fetch(_DECIDERS, approval_id)
    row, decided_by = review.row, review.row["decided_by"]
    deciders = frozenset(str(vote["user_id"]) for vote in votes) if decided_by is not None else frozenset()
    refused = withdrawal_refusal(review.record, review.decider, deciders, row["kind"])
    if refused is not None:
        raise refused
    review.refuse_stopped()
    withdrawal: dict[str, JsonValue] = {"by": review.decider.name, "comment": comment, "was": row["status"]}
    await tx.execute(_WITHDRAW, approval_id, withdrawal)
    address = review.address
    await audit.record(
        tx, "approval.withdrawn", approval_id, withdrawal, actor=decider.user_id, turn_id=address.turn_id
    )
    note = await put(tx, address.tenant_id, Wake.REQUEST, address.turn_id, approval_id)
    event: dict[str, JsonValue] = {"tool": row["tool"], "approval_id": approval_id, "reason": "withdrawn", **withdrawal}
    event |= refusal_data(row["kind"], "withdrawn")
    await write(tx, address, [NewEvent(TOOL_DENIED, event, event_call_id(row["kind"], row["call_id"]))])
    return review, note


_ADD_DELEGATION = """
INSERT INTO delegations (id, tenant_id, user_id, to_user, until, created_by)
SELECT $1, current_setting('perdure.tenant'), $2, $3, $4, $6::uuid[]
WHERE $4 > clock_timestamp() AND $4 <= clock_timestamp() + make_interval(days => $5) RETURNING created_at
"""
_PEOPLE = """
SELECT id, name, roles FROM users WHERE (id = $1 OR name = $2) AND disabled_at IS NULL
"""
_LIST_DELEGATIONS = """
SELECT d.id, g.name AS by, t.name AS to, d.until, d.created_at FROM delegations d JOIN users g ON g.id = d.user_id
JOIN users t ON t.id = d.to_user WHERE ($1::uuid IS NULL OR d.user_id = $1) AND d.ended_at IS NULL
  AND d.until > clock_timestamp() AND ($2::timestamptz IS NULL OR (d.created_at, d.id) < ($2, $3::uuid))
ORDER BY d.created_at DESC, d.id DESC LIMIT $4
"""


async def add_delegation(
    tx: Connection, user_id: str, name: str, to: str, until: datetime, credential: Credential
) -> dict[str, object]:
    """Lets the user named `to` decide on behalf of this user until a time. `credential` is the credential that the user
    signed in with.

    Raises: CallerError 404 `user_not_found`, 422 `to_yourself`, `nothing_to_delegate`, `cannot_decide`,
    `until_invalid`.
    """
    rows = await tx.fetch(_PEOPLE, user_id, to)
    people = [Reviewer(str(row["id"]), row["name"], frozenset(row["roles"])) for row in rows]
    other = next((each for each in people if each.name == to), None)
    if other is None:
        raise CallerError("user_not_found", "User not found", status=404)
    if other.user_id == user_id:
        raise CallerError("to_yourself", "You cannot delegate to yourself; name another user", status=422)
    # Decisions check the roles again, because roles can change.
    delegated_roles(next((each for each in people if each is not other), Reviewer(user_id, name, frozenset())), other)
    delegation_id = new_id()
    created_at = None
    with suppress(OverflowError):  # in UTC, the moment is beyond the calendar
        created_at = await tx.fetchval(
            _ADD_DELEGATION,
            delegation_id,
            user_id,
            other.user_id,
            until.astimezone(UTC),
            MAX_DAYS,
            credential.created_by,
        )
    if created_at is None:
        most = f"`until` must be in the future and at most {MAX_DAYS} days ahead"
        raise CallerError("until_invalid", most, {"most_days": MAX_DAYS}, status=422)
    data = {"to_user": other.user_id, "to": to, "until": until.isoformat()}
    await audit.record(tx, "delegation.added", delegation_id, {**data}, actor=user_id, turn_id=None)
    return {"id": delegation_id, "by": name, "to": to, "until": until, "created_at": created_at}


async def list_delegations(
    tx: Connection, user_id: str | None, limit: int, cursor: str | None = None
) -> tuple[list[dict[str, object]], str | None]:
    """Returns a page of the active delegations that this user created, newest first, and the cursor of the next page.
    With `user_id` None, returns those of all users of the tenant."""
    rows = await tx.fetch(_LIST_DELEGATIONS, user_id, *read_cursor(cursor), limit + 1)
    last = rows[limit - 1] if len(rows) > limit else None
    shown = [{**dict(row), "id": str(row["id"])} for row in rows[:limit]]
    return shown, cursor_after(last["created_at"], str(last["id"])) if last else None


async def remove_delegation(tx: Connection, user_id: str, delegation_id: str, *, any_owner: bool = False) -> None:
    """Ends a delegation of this user immediately, or any delegation with `any_owner`. Earlier decisions remain valid.

    Each delegation also ends at its date.

    Raises: CallerError 404 `delegation_not_found`.
    """
    ended = await tx.fetchval(
        "UPDATE delegations SET ended_at = clock_timestamp() WHERE id = $1 AND ($2::uuid IS NULL OR user_id = $2) "
        "AND ended_at IS NULL RETURNING true",
        delegation_id,
        None if any_owner else user_id,
    )
    if not ended:
        raise CallerError("delegation_not_found", "Delegation not found", status=404)
    await audit.record(tx, "delegation.removed", delegation_id, {}, actor=user_id, turn_id=None)
