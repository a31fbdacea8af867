"""Rules for moving a request: to another user (reassign), to another role (escalate), or back to all reviewers
(release). Withdrawal is here, too."""

from perdure.contracts.approvals import RequestKind
from perdure.contracts.errors import CallerError
from perdure.core.approvals.decisions import (
    ApprovalRecord,
    Decider,
    Reviewer,
    assignment_fault,
    closed_refusal,
    has_voted,
    held_by_another,
    is_taken,
    represented_reviewers,
)

ADMIN = "admin"
_GIVEN = frozenset({"approved", "edited"})
_BEGUN = frozenset({"reserved", "done", "failed", "outcome_unknown"})


def reassigner_refusal(record: ApprovalRecord, decider: Decider) -> CallerError | None:
    """Returns why this user cannot reassign the request, or None.

    Reviewers can reassign it, except delegates. Admins can, unless they requested it.
    """
    refused = _not_entitled(record, decider)
    if refused is not None and ADMIN not in decider.roles:
        return refused
    if refused is not None and decider.user_id == record.requested_by:
        return CallerError("own_request", "You requested this call, so you cannot choose its reviewer", status=403)
    if refused is not None and record.panel.is_for(decider.credential):
        return decider.credential.own_request()
    closed = closed_refusal(record) or held_by_another(record.claim, decider.user_id, record.now)
    if closed is not None or not record.reviewers:
        return closed
    # If reviewers are named, a named or assigned user whose vote is cast cannot pass on the request.
    if has_voted(decider.people, record.votes) or is_taken(decider.user_id, record.votes):
        return CallerError(
            "already_voted",
            "A vote was already cast by you or on your behalf, so you cannot reassign the request",
            status=409,
        )
    return None


def _not_entitled(record: ApprovalRecord, decider: Decider) -> CallerError | None:
    """Returns why this user cannot decide as themselves, or None."""
    try:
        reviewers = represented_reviewers(record.panel, decider.user_id, decider.represents, decider.credential)
    except CallerError as refused:
        return refused
    if any(each.user_id == decider.user_id for each in reviewers):
        return None
    owners: dict[str, object] = {"in_place_of": [each.name for each in reviewers]}
    return CallerError("only_stands_in", "Delegates can decide but cannot reassign", owners, status=403)


def reassignment_refusal(record: ApprovalRecord, to: Reviewer) -> CallerError | None:
    """Returns why the request cannot be assigned to `to`, or None."""
    why = assignment_fault(record.panel, to)
    if why is None and (has_voted((to.user_id,), record.votes) or is_taken(to.user_id, record.votes)):
        why = f"{to.name} has already decided on it"
    return (
        None
        if why is None
        else CallerError("cannot_decide", f"The request cannot be assigned to {to.name}: {why}", status=422)
    )


def reviewers_after(record: ApprovalRecord, decider: Decider, to: Reviewer) -> tuple[str, ...]:
    """Returns the named reviewers after a reassignment: `to` replaces the reviewer whom the policy named.

    They stay unchanged if no reviewer is named, if the decider is not one of them, or if `to` already is. Users who
    delegated to the decider stay named.
    """
    if to.name in record.reviewers:
        return record.reviewers
    return tuple(to.name if name == decider.name else name for name in record.reviewers)


def release_refusal(record: ApprovalRecord, decider: Decider) -> CallerError | None:
    """Returns why this user cannot release the claim, or None. Its holder and admins can."""
    mine = record.claim is not None and record.claim.user_id == decider.user_id
    if not mine and ADMIN not in decider.roles:
        try:
            represented_reviewers(record.panel, decider.user_id, decider.represents, decider.credential)
        except CallerError as refused:
            return refused
    closed = closed_refusal(record)
    if closed is not None:
        return closed
    if record.claim is None or not record.claim.is_active(record.now):
        return CallerError("not_claimed", "The request is not claimed, or the claim has expired", status=409)
    return None if ADMIN in decider.roles else held_by_another(record.claim, decider.user_id, record.now)


def withdrawal_refusal(
    record: ApprovalRecord, decider: Decider, deciders: frozenset[str], kind: str
) -> CallerError | None:
    """Returns why this user cannot withdraw the request or the approval, or None.

    Before a decision, the requester and admins can withdraw. After it, the reviewers who approved, any other user who
    is allowed to decide, and admins can.

    An approval can be withdrawn until its call has started; the reservation of the call decides the race.
    """
    if not _may_withdraw(record, decider, deciders):
        return CallerError(
            "role_required",
            (
                "Only the requester or an admin can withdraw a pending request, and only its approvers or an admin "
                "can withdraw an approval"
            ),
            {"role": record.reviewer_role if record.status in _GIVEN | _BEGUN else ADMIN},
            status=403,
        )
    # An approved checkpoint and a raised limit have no call that could still be prevented.
    if record.status in _BEGUN or (record.status == "approved" and kind != RequestKind.APPROVAL):
        return CallerError(
            "already_running",
            "The approved call has already started",
            {"status": record.status, "decision": record.decided_before},
            status=409,
        )
    return None if record.status in _GIVEN else closed_refusal(record)


def reissue_refusal(record: ApprovalRecord, decider: Decider, kind: str, outdated: str | None) -> CallerError | None:
    """Returns why this user cannot make the request again, or None. Its requester can, and each user who can decide.
    `outdated` is what changed after it was opened; None if it is valid.

    An approval whose call has not started is made again like a pending request.
    """
    if decider.user_id != record.requested_by:
        try:
            represented_reviewers(record.panel, decider.user_id, decider.represents, decider.credential)
        except CallerError as refused:
            return refused
    closed = None if record.status in _GIVEN else closed_refusal(record)
    if closed is not None:
        return closed
    if outdated is None:
        message = "The tool and the approval policy have not changed since the request, so it is still valid"
        return CallerError("not_outdated", message, status=409)
    if kind != RequestKind.APPROVAL:
        message = f"{outdated}. A {kind} cannot be reissued; reject it"
        return CallerError("cannot_reissue", message, {"outdated": outdated}, status=409)
    return None


def _may_withdraw(record: ApprovalRecord, decider: Decider, deciders: frozenset[str]) -> bool:
    if ADMIN in decider.roles:
        return True
    if record.status not in _GIVEN | _BEGUN:
        return decider.user_id == record.requested_by or decider.user_id in deciders
    if decider.user_id in deciders:
        return True
    try:
        return bool(represented_reviewers(record.panel, decider.user_id, decider.represents, decider.credential))
    except CallerError:
        return False
