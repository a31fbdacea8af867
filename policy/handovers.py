"""Handing a request over: to a person (reassign), to another role (escalate), to nobody for now (release)."""

from contracts.errors import CallerError
from policy.claims import held_by_another
from policy.decision import Decider, Facts, closed
from policy.seats import Seat, seats_for, why_not
from policy.votes import has_voted, is_taken
from policy.withdrawal import ADMIN


def handover_refusal(facts: Facts, decider: Decider) -> CallerError | None:
    """Why this person may not hand the request on, or None: who may decide on it may, and an admin but on the own."""
    try:
        sits = seats_for(facts.panel, decider.user_id, decider.seats)
    except CallerError as refused:
        if ADMIN not in decider.roles:
            return refused
        if decider.user_id == facts.requested_by:
            return CallerError("own_request", "who asked for a call may not choose who decides on it", status=403)
        sits = ()
    over = closed(facts) or held_by_another(facts.claim, decider.user_id, facts.now)
    if over is None and any(is_taken(seat.user_id, facts.votes) for seat in sits if seat.name in facts.reviewers):
        return CallerError("already_voted", "a decision was taken in your place; it cannot be given away", status=409)
    return over


def reassignment_refusal(facts: Facts, to: Seat) -> CallerError | None:
    """Why the request cannot be given to `to`, or None where it can."""
    why = why_not(facts.panel, to)
    if why is None and (has_voted(to.user_id, facts.votes) or is_taken(to.user_id, facts.votes)):
        why = f"{to.name} has decided on it"
    return None if why is None else CallerError("cannot_decide", f"it cannot be given to {to.name}: {why}", status=422)


def reviewers_after(facts: Facts, decider: Decider, to: Seat) -> tuple[str, ...]:
    """The named reviewers once it was handed on: `to` takes the place of the one whom the policy had named.

    They stay as they are where nobody is named, where whoever hands it on is not one of them, and where `to` is.
    """
    if to.name in facts.reviewers:
        return facts.reviewers
    own = [seat.name for seat in decider.seats if seat.name in facts.reviewers]
    return tuple(to.name if own and name == own[0] else name for name in facts.reviewers)


def release_refusal(facts: Facts, decider: Decider) -> CallerError | None:
    """Why this person may not end the claim, or None: its holder may, and an admin."""
    mine = facts.claim is not None and facts.claim.user_id == decider.user_id
    if not mine and ADMIN not in decider.roles:
        try:
            seats_for(facts.panel, decider.user_id, decider.seats)
        except CallerError as refused:
            return refused
    over = closed(facts)
    if over is not None:
        return over
    if facts.claim is None or not facts.claim.stands(facts.now):
        return CallerError("not_claimed", "nobody has claimed it, or the claim has lapsed", status=409)
    return None if ADMIN in decider.roles else held_by_another(facts.claim, decider.user_id, facts.now)
