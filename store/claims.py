"""Claims on requests: leases by the database's clock."""

from pydantic import JsonValue

from policy.claims import claim_span
from policy.decision import Decider, not_open_to
from policy.handovers import release_refusal
from store import audit
from store.database import Connection
from store.reviews import Review, take_up


async def claim(tx: Connection, approval_id: str, person: Decider, seconds: int) -> Review:
    """Keep others from deciding for `seconds` from now; again by the same person: longer, in all an hour.

    Raises: CallerError 404, 403, 409 decided, 410, 409 `already_voted`, 409 `claimed`, 409 `turn_stopped`, 409
    `claimed_too_long`.
    """
    review = await take_up(tx, approval_id, person)
    refused = not_open_to(review.facts, review.decider)
    if refused is not None:
        raise refused
    review.refuse_stopped()
    since, until = claim_span(review.facts.claim, person.user_id, review.facts.now, seconds)
    await tx.execute(
        "UPDATE approvals SET claimed_by = $2, claimed_since = $3, claimed_until = $4, version = version + 1 "
        "WHERE id = $1",
        approval_id,
        person.user_id,
        since,
        until,
    )
    told: dict[str, JsonValue] = {"until": until.isoformat()}
    await audit.record(tx, "approval.claimed", approval_id, told, actor=person.user_id, turn_id=review.address.turn_id)
    return review


async def release(tx: Connection, approval_id: str, person: Decider) -> Review:
    """End a claim before it lapses: one's own, or as an admin anybody's.

    Raises: CallerError 404, 403, 409 decided, 410, 409 `not_claimed`, 409 `claimed`.
    """
    review = await take_up(tx, approval_id, person)
    refused = release_refusal(review.facts, review.decider)
    if refused is not None:
        raise refused
    await tx.execute(
        # Who had it is kept: claimed again at once, it is the same lease.
        "UPDATE approvals SET claimed_until = clock_timestamp(), version = version + 1 WHERE id = $1",
        approval_id,
    )
    was = review.facts.claim
    told: dict[str, JsonValue] = {"was_claimed_by": was.name if was else ""}
    await audit.record(tx, "approval.released", approval_id, told, actor=person.user_id, turn_id=review.address.turn_id)
    return review
