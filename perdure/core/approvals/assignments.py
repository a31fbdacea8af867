"""Rules for moving a request: to another user (reassign), to another role (escalate), or back to all reviewers
(release). Withdrawal is here, too."""

from perdure.contracts.approvals import RequestKind
from perdure.contracts.errors import CallerError
from perdure.core.approvals.decisions import (
    Decider,
    Delegation,
    Facts,
    assignment_fault,
    closed_refusal,
    delegations_for,
    has_voted,
    held_by_another,
    is_taken,
)


def reassigner_refusal(facts: Facts, decider: Decider) -> CallerError | None:
    """Returns why this user cannot reassign the request, or None.

    Reviewers can reassign it, except delegates. Admins can, unless they requested it.
    """
    refused = _not_entitled(facts, decider)
    if refused is not None and ADMIN not in decider.roles:
        return refused
    if refused is not None and decider.user_id == facts.requested_by:
        return CallerError("own_request", "You requested this call, so you cannot choose its reviewer", status=403)
    if refused is not None and facts.panel.is_for(decider.credential):
        return decider.credential.own_request()
    closed = closed_refusal(facts) or held_by_another(facts.claim, decider.user_id, facts.now)
    if closed is not None or not facts.reviewers:
        return closed
    # If reviewers are named, a used place, named or assigned, cannot be passed on.
    if has_voted(decider.people, facts.votes) or is_taken(decider.user_id, facts.votes):
        return CallerError(
            "already_voted", "A decision was already made in your place, so you cannot reassign the request", status=409
        )
    return None


def _not_entitled(facts: Facts, decider: Decider) -> CallerError | None:
    """Returns why this user cannot decide in their own place, or None."""
    try:
        places = delegations_for(facts.panel, decider.user_id, decider.delegations, decider.credential)
    except CallerError as refused:
        return refused
    if any(delegation.user_id == decider.user_id for delegation in places):
        return None
    owners: dict[str, object] = {"in_place_of": [delegation.name for delegation in places]}
    return CallerError("only_stands_in", "Delegates can decide but cannot reassign", owners, status=403)


def reassignment_refusal(facts: Facts, to: Delegation) -> CallerError | None:
    """Returns why the request cannot be assigned to `to`, or None."""
    why = assignment_fault(facts.panel, to)
    if why is None and (has_voted((to.user_id,), facts.votes) or is_taken(to.user_id, facts.votes)):
        why = f"{to.name} has already decided on it"
    return (
        None
        if why is None
        else CallerError("cannot_decide", f"The request cannot be assigned to {to.name}: {why}", status=422)
    )


def reviewers_after(facts: Facts, decider: Decider, to: Delegation) -> tuple[str, ...]:
    """Returns the named reviewers after a reassignment: `to` takes the place of the reviewer whom the policy named.

    They stay unchanged if no reviewer is named, if the decider is not one of them, or if `to` already is. Users who
    delegated to the decider keep their places.
    """
    if to.name in facts.reviewers:
        return facts.reviewers
    return tuple(to.name if name == decider.name else name for name in facts.reviewers)


def release_refusal(facts: Facts, decider: Decider) -> CallerError | None:
    """Returns why this user cannot release the claim, or None. Its holder and admins can."""
    mine = facts.claim is not None and facts.claim.user_id == decider.user_id
    if not mine and ADMIN not in decider.roles:
        try:
            delegations_for(facts.panel, decider.user_id, decider.delegations, decider.credential)
        except CallerError as refused:
            return refused
    closed = closed_refusal(facts)
    if closed is not None:
        return closed
    if facts.claim is None or not facts.claim.is_active(facts.now):
        return CallerError("not_claimed", "The request is not claimed, or the claim has expired", status=409)
    return None if ADMIN in decider.roles else held_by_another(facts.claim, decider.user_id, facts.now)


ADMIN = "admin"
_GIVEN = frozenset({"approved", "edited"})
_BEGUN = frozenset({"reserved", "done", "failed", "outcome_unknown"})


def withdrawal_refusal(facts: Facts, decider: Decider, deciders: frozenset[str], kind: str) -> CallerError | None:
    """Returns why this user cannot withdraw the request or the approval, or None.

    Before a decision, the requester and admins can withdraw. After it, the reviewers who approved, any other user who
    is allowed to decide, and admins can.

    An approval can be withdrawn until its call has started; the reservation of the call decides the race.
    """
    if not _may_withdraw(facts, decider, deciders):
        return CallerError(
            "role_required",
            (
                "Only the requester or an admin can withdraw a pending request, and only its approvers or an admin "
                "can withdraw an approval"
            ),
            {"role": facts.reviewer_role if facts.status in _GIVEN | _BEGUN else ADMIN},
            status=403,
        )
    # An approved checkpoint and a raised limit have no call that could still be prevented.
    if facts.status in _BEGUN or (facts.status == "approved" and kind != RequestKind.APPROVAL):
        return CallerError(
            "already_running",
            "The approved call has already started",
            {"status": facts.status, "decision": facts.decided_before},
            status=409,
        )
    return None if facts.status in _GIVEN else closed_refusal(facts)


def _may_withdraw(facts: Facts, decider: Decider, deciders: frozenset[str]) -> bool:
    if ADMIN in decider.roles:
        return True
    if facts.status not in _GIVEN | _BEGUN:
        return decider.user_id == facts.requested_by or decider.user_id in deciders
    if decider.user_id in deciders:
        return True
    try:
        return bool(delegations_for(facts.panel, decider.user_id, decider.delegations, decider.credential))
    except CallerError:
        return False
