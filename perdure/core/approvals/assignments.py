"""Handing a request over: to a person (reassign), to another role (escalate), to nobody for now (release)."""

from perdure.contracts.approvals import RequestKind
from perdure.contracts.errors import CallerError
from perdure.core.approvals.decisions import (
    Decider,
    Facts,
    Seat,
    closed,
    has_voted,
    held_by_another,
    is_taken,
    seats_for,
    why_not,
)


def handover_refusal(facts: Facts, decider: Decider) -> CallerError | None:
    """Why this person may not hand the request on, or None: who may decide on it in the own seat may, and an admin but
    on the own request. Who only stands in for somebody may not: what is given away is not given back.
    """
    refused = _not_entitled(facts, decider)
    if refused is not None and ADMIN not in decider.roles:
        return refused
    if refused is not None and decider.user_id == facts.requested_by:
        return CallerError("own_request", "You requested this call, so you cannot choose who decides on it", status=403)
    if refused is not None and facts.panel.is_for(decider.credential):
        return decider.credential.own_request()
    over = closed(facts) or held_by_another(facts.claim, decider.user_id, facts.now)
    if over is not None or not facts.reviewers:
        return over
    # Where people are named a place is not used and then given away, be it a named one or the assigned one.
    if has_voted(decider.people, facts.votes) or is_taken(decider.user_id, facts.votes):
        return CallerError("already_voted", "a decision was taken in your place; it cannot be given away", status=409)
    return None


def _not_entitled(facts: Facts, decider: Decider) -> CallerError | None:
    """Why this person's own seat is none that decides on it."""
    try:
        sits = seats_for(facts.panel, decider.user_id, decider.seats, decider.credential)
    except CallerError as refused:
        return refused
    if any(seat.user_id == decider.user_id for seat in sits):
        return None
    owners: dict[str, object] = {"in_place_of": [seat.name for seat in sits]}
    return CallerError("only_stands_in", "who stands in for somebody decides, and hands nothing on", owners, status=403)


def reassignment_refusal(facts: Facts, to: Seat) -> CallerError | None:
    """Why the request cannot be given to `to`, or None where it can."""
    why = why_not(facts.panel, to)
    if why is None and (has_voted((to.user_id,), facts.votes) or is_taken(to.user_id, facts.votes)):
        why = f"{to.name} has decided on it"
    return None if why is None else CallerError("cannot_decide", f"it cannot be given to {to.name}: {why}", status=422)


def reviewers_after(facts: Facts, decider: Decider, to: Seat) -> tuple[str, ...]:
    """The named reviewers once it was handed on: `to` takes the place of the one whom the policy had named.

    They stay as they are where nobody is named, where whoever hands it on is not one of them, and where `to` is. The
    places of those who have delegated to that person stay theirs.
    """
    if to.name in facts.reviewers:
        return facts.reviewers
    return tuple(to.name if name == decider.name else name for name in facts.reviewers)


def release_refusal(facts: Facts, decider: Decider) -> CallerError | None:
    """Why this person may not end the claim, or None: its holder may, and an admin."""
    mine = facts.claim is not None and facts.claim.user_id == decider.user_id
    if not mine and ADMIN not in decider.roles:
        try:
            seats_for(facts.panel, decider.user_id, decider.seats, decider.credential)
        except CallerError as refused:
            return refused
    over = closed(facts)
    if over is not None:
        return over
    if facts.claim is None or not facts.claim.stands(facts.now):
        return CallerError("not_claimed", "nobody has claimed it, or the claim has lapsed", status=409)
    return None if ADMIN in decider.roles else held_by_another(facts.claim, decider.user_id, facts.now)


# --- Taking back a request, or an approval whose call has not begun.
# The reservation decides the race.

ADMIN = "admin"
_GIVEN = frozenset({"approved", "edited"})
_BEGUN = frozenset({"reserved", "done", "failed", "outcome_unknown"})


def withdrawal_refusal(facts: Facts, decider: Decider, deciders: frozenset[str], kind: str) -> CallerError | None:
    """Why this person may not withdraw it, or None where they may.

    Before a decision the requester and an admin may; after it those who took it, whoever could take it, and an admin.
    """
    if not _may(facts, decider, deciders):
        return CallerError(
            "role_required",
            "an open request is withdrawn by who asked or an admin, an approval by who gives it or an admin",
            {"role": facts.reviewer_role if facts.status in _GIVEN | _BEGUN else ADMIN},
            status=403,
        )
    # A checkpoint that was approved, or a limit that was raised, has no call that could still be kept from running.
    if facts.status in _BEGUN or (facts.status == "approved" and kind != RequestKind.APPROVAL):
        return CallerError(
            "already_running",
            "too late: what was approved has begun",
            {"status": facts.status, "decision": facts.decided_before},
            status=409,
        )
    return None if facts.status in _GIVEN else closed(facts)


def _may(facts: Facts, decider: Decider, deciders: frozenset[str]) -> bool:
    if ADMIN in decider.roles:
        return True
    if facts.status not in _GIVEN | _BEGUN:
        return decider.user_id == facts.requested_by or decider.user_id in deciders
    if decider.user_id in deciders:
        return True
    try:
        return bool(seats_for(facts.panel, decider.user_id, decider.seats, decider.credential))
    except CallerError:
        return False
