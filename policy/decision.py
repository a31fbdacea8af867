"""Why a decision is refused, in the contract's order: 404, 403, 409 decided, 410, 409 voted or claimed, 409 digest,
422."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from contracts.errors import CallerError
from policy.claims import Claimed, held_by_another
from policy.credentials import OWN, Credential
from policy.moments import told
from policy.seats import DECIDING_ROLES, Panel, Seat, seats_for
from policy.votes import Vote, has_voted, is_taken


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
    """Of the call as it is to be decided on now."""
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
    reviewers: tuple[str, ...] = ()
    assignee: str = ""
    votes: tuple[Vote, ...] = ()
    claim: Claimed | None = None
    requester_is_admin: bool = False
    quorum: int = 1

    @property
    def panel(self) -> Panel:
        """Who may decide."""
        return Panel(
            self.requested_by,
            self.reviewer_role,
            self.allow_self_approval,
            self.reviewers,
            self.assignee,
            self.requester_is_admin,
        )


@dataclass(frozen=True, slots=True)
class Decider:
    """Who decides."""

    user_id: str
    roles: frozenset[str]
    name: str = ""
    in_place_of: tuple[Seat, ...] = ()
    """Those who have delegated to this person for now."""
    credential: Credential = OWN

    @property
    def people(self) -> frozenset[str]:
        """Everybody who may act as this user by this credential."""
        return self.credential.people(self.user_id)

    @property
    def seats(self) -> tuple[Seat, ...]:
        """The own seat, and those of others."""
        return (Seat(self.user_id, self.name, self.roles), *self.in_place_of)

    def sees(self, user_id: str) -> bool:
        """Whether this person may know of what that user has asked for. If not, it is answered as if it did not exist,
        whatever else is wrong with the request."""
        return self.user_id == user_id or bool(self.roles & DECIDING_ROLES)


def refusal(
    facts: Facts,
    decider: Decider,
    decision: Decision,
    digest: str,
    *,
    reasoned: bool,
    args_given: bool,
    text: bool,
    unfit: CallerError | None = None,
) -> CallerError | None:
    """The first reason why this decision may not be taken, or None if it may. `unfit` is why the route that it came by
    does not take it."""
    found = not_open_to(facts, decider)
    if found is not None:
        return found
    if digest != facts.digest:
        return CallerError(
            "digest_differs",
            "the call is not the one you saw; read it again and decide on its digest",
            {"digest": facts.digest},
            status=409,
        )
    if unfit is not None:
        return unfit
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


def not_open_to(facts: Facts, decider: Decider) -> CallerError | None:
    """Why this person has nothing to decide here, whatever the decision: 403, then 409 or 410 by what became of it."""
    try:
        sits = seats_for(facts.panel, decider.user_id, decider.seats, decider.credential)
    except CallerError as refused:
        return refused
    over = closed(facts)
    if over is not None:
        return over
    if has_voted((decider.user_id,), facts.votes) or all(is_taken(seat.user_id, facts.votes) for seat in sits):
        return CallerError("already_voted", "You have decided on this call; other people must decide, too", status=409)
    if has_voted(decider.people, facts.votes) or (decider.credential.is_unknown and facts.quorum > 1):
        return _same_person(decider.credential)
    return held_by_another(facts.claim, decider.user_id, facts.now)


def _same_person(credential: Credential) -> CallerError:
    """Why a vote would not be another person's."""
    why = (
        "It is not on record who created the token or session that you use"
        if credential.is_unknown
        else "A vote of the person who created the token or session that you use, or of another one that this person "
        "created, was counted"
    )
    ways = "Sign in with a password of your own or at your organization's provider to vote as yourself"
    reason: dict[str, object] = {"reason": "credential_of_voter"}
    return CallerError("already_voted", f"{why}. {ways}", reason, status=409)


def closed(facts: Facts) -> CallerError | None:
    """What became of a request that nobody can decide any more; None while it is open."""
    if facts.status == "expired" or (facts.status == "pending" and facts.expires_at <= facts.now):
        expired = f"too late: it expired undecided at {told(facts.expires_at)} and counts as denied"
        return CallerError("approval_expired", expired, status=410)
    if facts.status != "pending":
        now: dict[str, object] = {"status": facts.status, "decision": facts.decided_before}
        return CallerError("already_decided", _too_late(facts), now, status=409)
    return None


def seat_of(facts: Facts, decider: Decider) -> Seat:
    """The seat that a decision which is not refused is taken in: the own one where it is free.

    Raises: CallerError 403, as `refusal` gives it.
    """
    sits = seats_for(facts.panel, decider.user_id, decider.seats, decider.credential)
    return next((seat for seat in sits if not is_taken(seat.user_id, facts.votes)), sits[0])


def _too_late(facts: Facts) -> str:
    """Who decided what and when; where nobody did (a stopped turn), what became of it."""
    before = facts.decided_before
    if "by" not in before or facts.status == "withdrawn":  # nor is it known of what was erased with a person
        return f"too late: it is {facts.status}"
    what = STATUS_OF[Decision(str(before["type"]))]
    return f"too late: {what} by {before['by']} at {told(datetime.fromisoformat(str(before['at'])))}"
