"""Handing a request over by hand: to a person, or to the role that the policy names for it."""

from pydantic import JsonValue

from contracts.errors import CallerError
from policy.decision import Decider
from policy.handovers import handover_refusal, reassignment_refusal, reviewers_after
from policy.seats import Seat
from store import audit
from store.database import Connection
from store.overdue import ESCALATED
from store.reviews import Review, take_up


async def reassign(tx: Connection, approval_id: str, person: Decider, to: str, comment: str) -> Review:
    """Put it on the list of the user named `to`. Others who may decide still may; a named reviewer gives the place up.

    Raises: CallerError 404, 403, 409 decided, 410, 409 `claimed`, 409 `already_voted`, 409 `turn_stopped`, 422
    `cannot_decide`.
    """
    review = await _to_hand_over(tx, approval_id, person)
    row = await tx.fetchrow("SELECT id, name, roles FROM users WHERE name = $1 AND disabled_at IS NULL", to)
    if row is None:
        raise CallerError("cannot_decide", "it cannot be given to somebody who is not there", {"to": to}, status=422)
    given_to = Seat(str(row["id"]), row["name"], frozenset(row["roles"]))
    refused = reassignment_refusal(review.facts, given_to)
    if refused is not None:
        raise refused
    reviewers = reviewers_after(review.facts, review.decider, given_to)
    await tx.execute(
        # Who had claimed it is kept: claimed again at once, it is the same lease.
        "UPDATE approvals SET assignee = $2, reviewers = $3, claimed_until = least(claimed_until, clock_timestamp()), "
        "version = version + 1 WHERE id = $1",
        approval_id,
        given_to.user_id,
        list(reviewers),
    )
    told: dict[str, JsonValue] = {"to": given_to.name, "comment": comment}
    if reviewers != review.facts.reviewers:
        told |= {"reviewers": list(reviewers), "reviewers_before": list(review.facts.reviewers)}
    await _record(tx, review, "approval.reassigned", told)
    return review


async def escalate(tx: Connection, approval_id: str, person: Decider, comment: str) -> Review:
    """Hand it to the policy's other role, once. The deadline stays; at it, it is denied.

    Raises: CallerError 404, 403, 409 decided, 410, 409 `claimed`, 409 `already_voted`, 409 `turn_stopped`, 409
    `already_escalated`.
    """
    review = await _to_hand_over(tx, approval_id, person)
    row = review.row
    if row["escalated_at"] is not None:
        details: dict[str, object] = {"escalated_at": row["escalated_at"], "role": row["reviewer_role"]}
        raise CallerError("already_escalated", "it has been escalated; that is done once", details, status=409)
    await tx.execute(f"UPDATE approvals SET {ESCALATED} WHERE id = $1", approval_id)
    told: dict[str, JsonValue] = {"from": row["reviewer_role"], "to": row["escalation_role"], "comment": comment}
    await _record(tx, review, "approval.escalated", told)
    return review


async def _to_hand_over(tx: Connection, approval_id: str, person: Decider) -> Review:
    """The locked approval, where this person may give it to somebody else."""
    review = await take_up(tx, approval_id, person)
    refused = handover_refusal(review.facts, review.decider)
    if refused is not None:
        raise refused
    review.refuse_stopped()
    return review


async def _record(tx: Connection, review: Review, kind: str, told: dict[str, JsonValue]) -> None:
    await audit.record(tx, kind, review.approval_id, told, actor=review.decider.user_id, turn_id=review.address.turn_id)
