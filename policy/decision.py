"""Why a decision is refused, in the contract's order: 404, 403, 409 decided, 410, 409 digest, 422."""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from contracts.errors import CallerError


class Decision(StrEnum):
    """A reviewer's vocabulary."""

    APPROVE = "approve"
    EDIT = "edit"
    REJECT = "reject"
    RESPOND = "respond"


STATUS_OF = {
    Decision.APPROVE: "approved",
    Decision.EDIT: "edited",
    Decision.REJECT: "rejected",
    Decision.RESPOND: "responded",
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What the record says of an approval, and who asks."""

    status: str
    digest: str
    expires_at: datetime
    now: datetime
    """The database's clock."""
    requested_by: str
    reviewer_role: str
    allow_self_approval: bool
    decided_before: dict[str, object]
    """The first decision, shown to whoever comes second."""
    editable: bool = True
    """Whether there are arguments to edit."""


@dataclass(frozen=True, slots=True)
class Decider:
    """Who decides."""

    user_id: str
    roles: frozenset[str]


def refusal(
    facts: Facts, decider: Decider, decision: Decision, digest: str, *, reasoned: bool, args_given: bool, text: bool
) -> CallerError | None:
    """The first reason why this decision may not be taken, or None where it may."""
    if facts.reviewer_role not in decider.roles:
        return CallerError(
            "role_required", f"deciding needs the role {facts.reviewer_role}", {"role": facts.reviewer_role}, status=403
        )
    if decider.user_id == facts.requested_by and not facts.allow_self_approval:
        return CallerError("own_request", "who asked for a call may not decide on it", status=403)
    if facts.status == "expired" or (facts.status == "pending" and facts.expires_at <= facts.now):
        expired = f"too late: it expired undecided at {_moment(facts.expires_at)} and counts as denied"
        return CallerError("approval_expired", expired, status=410)
    if facts.status != "pending":
        now: dict[str, object] = {"status": facts.status, "decision": facts.decided_before}
        return CallerError("already_decided", _too_late(facts), now, status=409)
    if digest != facts.digest:
        return CallerError(
            "digest_differs",
            "the call is not the one you saw; read it again and decide on its digest",
            {"digest": facts.digest},
            status=409,
        )
    if decision is Decision.REJECT and not reasoned:
        return CallerError("reason_required", "a rejection needs a comment or a reason_code", status=422)
    if decision is Decision.EDIT and not facts.editable:
        return CallerError("nothing_to_edit", "there is no call to edit; approve, reject or respond", status=422)
    if decision is Decision.EDIT and not args_given:
        return CallerError("args_required", "an edit needs the new arguments in `args`", status=422)
    if decision is not Decision.EDIT and args_given:
        return CallerError("args_unexpected", "only an edit takes `args`", status=422)
    if decision is Decision.RESPOND and not text:
        return CallerError("comment_required", "a response needs its text in `comment`", status=422)
    return None


def _too_late(facts: Facts) -> str:
    """Who decided what and when; where nobody did (a stopped turn), what became of it."""
    before = facts.decided_before
    if not before:
        return f"too late: it is {facts.status}"
    what = STATUS_OF[Decision(str(before["type"]))]
    return f"too late: {what} by {before['by']} at {_moment(datetime.fromisoformat(str(before['at'])))}"


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
