"""Taking back a request, or an approval whose call has not begun. The reservation decides the race."""

from contracts.errors import CallerError
from contracts.people import RequestKind
from policy.decision import Decider, Facts, closed
from policy.seats import seats_for

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
