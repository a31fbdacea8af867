"""Approvals taken back: by a person, or by the engine where what they rested on has changed."""

from pydantic import JsonValue

from contracts.events import TOOL_DENIED
from policy.decision import Decider
from policy.withdrawal import withdrawal_refusal
from store import audit
from store.checkpoints import call_told_of
from store.database import Connection
from store.journal import NewEvent, write
from store.outbox import Note, Wake, put
from store.reviews import Review, take_up

_DECIDERS = "SELECT user_id FROM approval_votes WHERE approval_id = $1 AND voided_at IS NULL"
_WITHDRAW = """
UPDATE approvals SET status = 'withdrawn', withdrawal = $2::jsonb || jsonb_build_object('at', clock_timestamp()),
  closed_at = clock_timestamp(), claimed_by = NULL, claimed_until = NULL, version = version + 1 WHERE id = $1
"""


async def withdraw(tx: Connection, approval_id: str, person: Decider, comment: str) -> tuple[Review, Note]:
    """Take back a request, or an approval whose call is not reserved; the note rings its turn.

    The turn's row is locked, as by the claim of the call: one of the two comes first.

    Raises: CallerError 404, 403, 409 `already_running`, 409 decided, 410, 409 `turn_stopped`.
    """
    review = await take_up(tx, approval_id, person)
    votes = await tx.fetch(_DECIDERS, approval_id)
    row, decided_by = review.row, review.row["decided_by"]
    deciders = frozenset(str(vote["user_id"]) for vote in votes) if decided_by is not None else frozenset()
    refused = withdrawal_refusal(review.facts, review.decider, deciders, row["kind"])
    if refused is not None:
        raise refused
    review.refuse_stopped()
    told: dict[str, JsonValue] = {"by": review.decider.name, "comment": comment, "was": row["status"]}
    await tx.execute(_WITHDRAW, approval_id, told)
    address = review.address
    await audit.record(tx, "approval.withdrawn", approval_id, told, actor=person.user_id, turn_id=address.turn_id)
    note = await put(tx, address.tenant_id, Wake.RING, address.turn_id, approval_id)
    event: dict[str, JsonValue] = {"tool": row["tool"], "approval_id": approval_id, "reason": "withdrawn", **told}
    await write(tx, address, [NewEvent(TOOL_DENIED, event, call_told_of(row["kind"], row["call_id"]))])
    return review, note


async def void(tx: Connection, approval_id: str, because: str, turn_id: str) -> None:
    """Close an approval that does not cover its call any more; `tx` holds the turn's lock. Others stay as they are."""
    closed = await tx.fetchval(
        "UPDATE approvals SET status = 'cancelled', closed_at = clock_timestamp(), version = version + 1 "
        "WHERE id = $1 AND status IN ('approved', 'edited') RETURNING true",
        approval_id,
    )
    if closed:
        await audit.record(tx, "approval.voided", approval_id, {"because": because}, actor=None, turn_id=turn_id)
