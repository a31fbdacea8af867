"""Why a decision is refused, in the contract's order: 404, 403, 409 decided, 410, 409 voted or claimed, 409 digest,
422."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from perdure.contracts.approvals import RequestKind
from perdure.contracts.errors import CallerError
from perdure.core.identity import OWN, Credential
from perdure.core.text import format_time

# --- In whose place somebody may decide: the own seat, or that of a person who has delegated to them until a date.
# Invariants:
# - The requester sits in no seat, and nobody sits in the requester's, unless the policy lets people decide on their
#   own.
# - A seat is worth something while its owner has the role that is asked for, now, and is among the named reviewers
#   where there are any; whoever it was assigned to counts as named.
# - Who sits in it has that role too, now: a delegation lends the place of somebody who is named or assigned, and no
#   role.
# - A seat that was lent, or is sat in, by a credential of the requester's making is the requester's own.
# - A seat is not handed on: who sits in somebody's place can neither delegate that place nor give it away.

ROLES = frozenset({"requester", "reviewer", "admin"})
"""All that a user can have."""
USER_NAME = r"^[a-z][a-z0-9._-]{0,62}$"
"""What a user can be called."""
DECIDING_ROLES = frozenset({"reviewer", "admin"})
"""Who has one of them sees what others have asked for. To nobody else a seat can be lent."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A person, as far as a decision is made in this person's name."""

    user_id: str
    name: str
    roles: frozenset[str]
    lent_by: Credential = OWN
    """What its owner was signed in by when it was lent."""


@dataclass(frozen=True, slots=True)
class Panel:
    """Who may decide on one request, as its record says now."""

    requested_by: str
    role: str
    allow_self_approval: bool = False
    reviewers: tuple[str, ...] = ()
    """Names; empty for whoever has the role."""
    assignee: str = ""
    """A user id; empty for nobody."""
    requester_is_admin: bool = False

    def is_for(self, credential: Credential) -> bool:
        """Whether what this credential does here may be the requester's doing."""
        return credential.acts_for(self.requested_by, is_admin=self.requester_is_admin)

    def names(self, name: str) -> bool:
        """Whether a person of this name is one of the named reviewers; where nobody is named, everybody is."""
        return not self.reviewers or name in self.reviewers


def is_entitled(panel: Panel, seat: Seat) -> bool:
    """Whether a decision in this seat would count, whoever sits in it."""
    return panel.role in seat.roles and (panel.names(seat.name) or seat.user_id == panel.assignee)


def seats_for(panel: Panel, user_id: str, seats: Sequence[Seat], credential: Credential) -> tuple[Seat, ...]:
    """Those of `seats` in which this user, signed in by `credential`, may decide; the own one first, at least one.

    Raises: CallerError 403 `role_required`, `not_a_reviewer`, `own_request`.
    """
    if not any(seat.user_id == user_id and panel.role in seat.roles for seat in seats):
        raise CallerError("role_required", f"deciding needs the role {panel.role}", {"role": panel.role}, status=403)
    fit = [seat for seat in seats if is_entitled(panel, seat)]
    if not fit:
        who: dict[str, object] = {"reviewers": list(panel.reviewers)}
        raise CallerError("not_a_reviewer", "only those whom the policy names may decide on it", who, status=403)
    if not panel.allow_self_approval:
        fit = [seat for seat in fit if panel.requested_by not in (user_id, seat.user_id)]
        if fit and panel.is_for(credential):
            raise credential.own_request()
        fit = [seat for seat in fit if not panel.is_for(seat.lent_by)]
    if not fit:
        raise CallerError("own_request", "You requested this call, so you cannot decide on it", status=403)
    return tuple(sorted(fit, key=lambda seat: seat.user_id != user_id))


def lent(owner: Seat, to: Seat) -> frozenset[str]:
    """The roles in which `to` may sit in the owner's place: those that decide and that both have.

    Raises: CallerError 422 `nothing_to_delegate`, `cannot_decide`.
    """
    own = owner.roles & DECIDING_ROLES
    if not own:
        raise CallerError("nothing_to_delegate", "you decide on nothing that somebody could decide for you", status=422)
    both = own & to.roles
    if not both:
        needed = " or ".join(sorted(own))
        why = f"{to.name} has not the role {needed}; a delegation lends your place, and no role"
        raise CallerError("cannot_decide", why, {"to": to.name, "roles": sorted(own)}, status=422)
    return both


def why_not(panel: Panel, seat: Seat) -> str | None:
    """Why a request cannot be given to this person, or None where it can."""
    if panel.role not in seat.roles:
        return f"{seat.name} has not the role {panel.role}"
    if seat.user_id == panel.requested_by and not panel.allow_self_approval:
        return f"{seat.name} has asked for the call"
    return None


# --- A claim is a lease: for a while nobody else decides; it lapses by itself, so that nothing is locked away for good.
# One person's claims in a row are one lease, which ends after an hour however often it is renewed: then others, and the
# fallback reviewer, have their turn.

DEFAULT_SECONDS = 900
MOST_SECONDS = 3_600
"""Of one person's claims in a row."""
BREAK_SECONDS = 300
"""So long after a claim has ended the same person's next one is another lease; the fallback looks every few seconds."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """Who has claimed a request, and until when."""

    user_id: str
    name: str
    until: datetime
    since: datetime
    """When the first of this person's claims in a row was made."""

    def stands(self, now: datetime) -> bool:
        """Whether it has not lapsed."""
        return now < self.until


def held_by_another(claim: Claimed | None, user_id: str, now: datetime) -> CallerError | None:
    """Why this user must wait, or None where nobody else holds the request."""
    if claim is None or claim.user_id == user_id or not claim.stands(now):
        return None
    details: dict[str, object] = {"claimed_by": claim.name, "claimed_until": claim.until}
    return CallerError(
        "claimed", f"{claim.name} is looking at it until {format_time(claim.until)}", details, status=409
    )


def claim_span(claim: Claimed | None, user_id: str, now: datetime, seconds: int) -> tuple[datetime, datetime]:
    """Since when and until when this user has the request, claiming it now for `seconds`.

    Raises: CallerError 409 `claimed_too_long`.
    """
    again_at = now if claim is None else claim.until + timedelta(seconds=BREAK_SECONDS)
    goes_on = claim is not None and claim.user_id == user_id and now < again_at
    since = claim.since if claim is not None and goes_on else now
    most = since + timedelta(seconds=MOST_SECONDS)
    if most <= now:
        why = f"you have kept it for an hour; decide, or claim it again after {format_time(again_at)}"
        raise CallerError("claimed_too_long", why, {"again_at": again_at}, status=409)
    return since, min(most, now + timedelta(seconds=seconds))


# --- The decisions taken on one request so far: a person counts once, and so does a seat.
# What was cast by a credential of
# another person's making may be that person's.


@dataclass(frozen=True, slots=True)
class Vote:
    """A decision that stands; those that an edit has made void are none."""

    user_id: str
    seat_id: str
    counts: bool
    """Whether the seat's owner, and whoever sat in it, still have the role that the vote was given by."""
    is_named: bool = True
    """Whether the seat is one of the named reviewers'; where nobody is named, every one is as good."""
    created_by: tuple[str, ...] = ()
    """The creators of the credential that it was cast by."""

    @property
    def people(self) -> frozenset[str]:
        """Everybody who may have cast it."""
        return frozenset((self.user_id, *self.created_by))


def has_voted(people: Collection[str], votes: Sequence[Vote]) -> bool:
    """Whether one of these people may have decided already, in whichever seat."""
    return any(not vote.people.isdisjoint(people) for vote in votes)


def is_taken(seat_id: str, votes: Sequence[Vote]) -> bool:
    """Whether somebody has decided in this seat already."""
    return any(vote.seat_id == seat_id for vote in votes)


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
        expired = f"too late: it expired undecided at {format_time(facts.expires_at)} and counts as denied"
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
    return f"too late: {what} by {before['by']} at {format_time(datetime.fromisoformat(str(before['at'])))}"


# --- What one more decision makes of a request.
# One who rejects or responds decides at once; approving takes as many people as the policy says. An edit freezes the
# call anew: what was approved before was another call, so those votes are void, and the editor's is the first.
#
# Invariant: where reviewers are named, of the seats that approve at most one is not one of theirs. Whoever the request
# was assigned to makes up for one of them; however often it is assigned anew, for one only.

PENDING = "pending"


def counted(votes: Sequence[Vote]) -> tuple[Vote, ...]:
    """Those of these approvals that the quorum is counted by."""
    standing = [vote for vote in votes if vote.counts]
    extra = [vote for vote in standing if not vote.is_named][1:]
    return tuple(vote for vote in standing if vote not in extra)


def status_after(decision: Decision, quorum: int, votes: Sequence[Vote], mine: Vote, *, revised: bool) -> str:
    """The status of a request once this decision is taken too; `pending` where approvals are still missing.

    `mine` is the vote that it comes to. `revised` says that somebody has edited the call before: then it is approved as
    edited.
    """
    if decision not in (Decision.APPROVE, Decision.EDIT):
        return STATUS_OF[decision]
    before = () if decision is Decision.EDIT else votes
    if len(counted((*before, mine))) < quorum:
        return PENDING
    return STATUS_OF[Decision.EDIT if revised else decision]


# --- Which approvals may be given in one go: calls of low risk, all of one tool of one agent in one version.
# The rest is decided one by one.

NOT_IN_BULK = (
    "only calls of low risk and of one tool are approved together; a checkpoint, a limit, edits and responses are "
    "decided one by one"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What one approval is about."""

    kind: str
    agent_id: str
    tool: str
    tool_version: str
    risk: str


def alone(kind: str, risk: str) -> str:
    """Why an approval of this kind and risk is given by itself; empty where it may be given among others."""
    if kind == RequestKind.CHECKPOINT:
        return "a checkpoint is read and approved by itself"
    if kind != RequestKind.APPROVAL:
        return "a limit is raised by itself"
    return "" if risk == "low" else f"only calls of low risk are approved together, and this one's is {risk}"


def approvable_together(asked: Sequence[Asked]) -> bool:
    """Whether these may be approved by one request."""
    # Another agent's tool of the same name may do something else.
    alike = len({(each.agent_id, each.tool, each.tool_version) for each in asked}) <= 1
    return alike and not any(alone(each.kind, each.risk) for each in asked)
