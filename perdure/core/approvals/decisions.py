"""Rules for decisions: who can decide, and the order of refusals.

The order is part of the contract: 404, 403, 409 decided, 410, 409 voted or claimed, 409 revision, 409 digest, 422.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from perdure.contracts.approvals import RequestKind
from perdure.contracts.errors import CallerError
from perdure.core.identity import OWN_CREDENTIAL, Credential
from perdure.core.text import format_time

ROLES = frozenset({"requester", "reviewer", "admin"})
"""All roles of a user."""
USER_NAME = r"^[a-z][a-z0-9._-]{0,62}$"
"""The pattern of a user name."""
DECIDING_ROLES = frozenset({"reviewer", "admin"})
"""Roles that can see other users' requests. A delegate needs one of them."""
DEFAULT_CLAIM_SECONDS = 900
MAX_CLAIM_SECONDS = 3_600
"""The maximum for consecutive claims of one user."""
CLAIM_BREAK_SECONDS = 300
"""The time after the end of a claim when the same user's next claim is a new one. The fallback check runs every few
seconds."""
PENDING = "pending"
BULK_REFUSAL = (
    "Only low-risk calls of one tool can be approved in bulk; decide on checkpoints, limits, edits and responses "
    "one by one"
)


@dataclass(frozen=True, slots=True)
class Reviewer:
    """A user on whose behalf a decision can be made: the deciding user, or a user who delegated to them until a date.
    Whether the user is entitled to decide is checked for each request.

    Invariants:
    - Unless the policy allows self-approval, the requester cannot decide, and no user can decide on their behalf.
    - A decision counts only while the user on whose behalf it was made has the required role. If reviewers are named,
      that user must be one of them; the assignee counts as named.
    - A delegate must also have the required role. A delegation makes the delegate act for a named or assigned user; it
      never passes on a role.
    - A delegation counts as the requester's if it was created, or is used, with a credential that the requester
      created.
    - A delegation cannot be passed on: a delegate can neither delegate further nor reassign the request.
    """

    user_id: str
    name: str
    roles: frozenset[str]
    created_with: Credential = OWN_CREDENTIAL
    """The credential with which this user created the delegation."""


@dataclass(frozen=True, slots=True)
class Panel:
    """The users who can decide on one request, from its current record."""

    requested_by: str
    role: str
    allow_self_approval: bool = False
    reviewers: tuple[str, ...] = ()
    """User names. If empty, every user with the role can decide."""
    assignee: str = ""
    """A user id; empty if the request is not assigned."""
    requester_is_admin: bool = False

    def is_for(self, credential: Credential) -> bool:
        """Returns whether the requester may be acting through this credential."""
        return credential.acts_for(self.requested_by, is_admin=self.requester_is_admin)

    def names(self, name: str) -> bool:
        """Returns whether the user is a named reviewer; always true if no reviewer is named."""
        return not self.reviewers or name in self.reviewers


def is_entitled(panel: Panel, reviewer: Reviewer) -> bool:
    """Returns whether a decision on behalf of this user would count, regardless of who makes it."""
    return panel.role in reviewer.roles and (panel.names(reviewer.name) or reviewer.user_id == panel.assignee)


def represented_reviewers(
    panel: Panel, user_id: str, reviewers: Sequence[Reviewer], credential: Credential
) -> tuple[Reviewer, ...]:
    """Returns those of `reviewers` on whose behalf this user can decide with `credential`: at least one, the user
    themselves first.

    Raises: CallerError 403 `role_required`, `not_a_reviewer`, `own_request`.
    """
    if not any(each.user_id == user_id and panel.role in each.roles for each in reviewers):
        raise CallerError(
            "role_required",
            f"You need the role {panel.role} to decide on this request",
            {"role": panel.role},
            status=403,
        )
    eligible = [each for each in reviewers if is_entitled(panel, each)]
    if not eligible:
        named: dict[str, object] = {"reviewers": list(panel.reviewers)}
        raise CallerError(
            "not_a_reviewer", "The approval policy names other reviewers for this request", named, status=403
        )
    if not panel.allow_self_approval:
        eligible = [each for each in eligible if panel.requested_by not in (user_id, each.user_id)]
        if eligible and panel.is_for(credential):
            raise credential.own_request()
        eligible = [each for each in eligible if not panel.is_for(each.created_with)]
    if not eligible:
        raise CallerError("own_request", "You requested this call, so you cannot decide on it", status=403)
    return tuple(sorted(eligible, key=lambda each: each.user_id != user_id))


def delegated_roles(owner: Reviewer, to: Reviewer) -> frozenset[str]:
    """Returns the roles in which `to` can act as the owner's delegate: the deciding roles that both users have.

    Raises: CallerError 422 `nothing_to_delegate`, `cannot_decide`.
    """
    own = owner.roles & DECIDING_ROLES
    if not own:
        raise CallerError(
            "nothing_to_delegate", "You have no role that decides, so there is nothing to delegate", status=422
        )
    both = own & to.roles
    if not both:
        needed = " or ".join(sorted(own))
        why = f"{to.name} does not have the role {needed}; a delegation does not pass on roles"
        raise CallerError("cannot_decide", why, {"to": to.name, "roles": sorted(own)}, status=422)
    return both


def assignment_fault(panel: Panel, to: Reviewer) -> str | None:
    """Returns why a request cannot be assigned to this user, or None."""
    if panel.role not in to.roles:
        return f"{to.name} does not have the role {panel.role}"
    if to.user_id == panel.requested_by and not panel.allow_self_approval:
        return f"{to.name} requested the call"
    return None


@dataclass(frozen=True, slots=True)
class ReviewClaim:
    """A claim on a request: its holder and its end. While it is valid, no other reviewer can decide. It expires by
    itself, so that no request stays locked. Consecutive claims of one user count as one claim, which ends after an hour
    even if it is renewed. Other reviewers and the fallback reviewer can then claim the request."""

    user_id: str
    name: str
    until: datetime
    since: datetime
    """The start of the first of this user's consecutive claims."""

    def is_active(self, now: datetime) -> bool:
        """Returns whether the claim has not expired."""
        return now < self.until


def held_by_another(claim: ReviewClaim | None, user_id: str, now: datetime) -> CallerError | None:
    """Returns the refusal if another user has claimed the request, or None."""
    if claim is None or claim.user_id == user_id or not claim.is_active(now):
        return None
    details: dict[str, object] = {"claimed_by": claim.name, "claimed_until": claim.until}
    return CallerError("claimed", f"{claim.name} has claimed it until {format_time(claim.until)}", details, status=409)


def claim_span(claim: ReviewClaim | None, user_id: str, now: datetime, seconds: int) -> tuple[datetime, datetime]:
    """Returns the start and the end of this user's claim, if it is made or renewed now for `seconds`.

    Raises: CallerError 409 `claimed_too_long`.
    """
    claimable_at = now if claim is None else claim.until + timedelta(seconds=CLAIM_BREAK_SECONDS)
    is_renewal = claim is not None and claim.user_id == user_id and now < claimable_at
    since = claim.since if claim is not None and is_renewal else now
    latest = since + timedelta(seconds=MAX_CLAIM_SECONDS)
    if latest <= now:
        why = f"You have claimed it for an hour; decide, or claim it again after {format_time(claimable_at)}"
        raise CallerError("claimed_too_long", why, {"again_at": claimable_at}, status=409)
    return since, min(latest, now + timedelta(seconds=seconds))


@dataclass(frozen=True, slots=True)
class Vote:
    """A vote that is still valid. Votes that an edit has voided are excluded. Each user counts once, both
    as a voter and as the user voted for. A vote that was cast with a credential that another user created may be that
    user's vote."""

    user_id: str
    reviewer_id: str
    counts: bool
    """True if the voter, and the user on whose behalf they voted, still have the role of the vote."""
    is_named: bool = True
    """True if the vote is on behalf of a named reviewer, or if no reviewer is named."""
    created_by: tuple[str, ...] = ()
    """The creators of the credential that cast the vote."""

    @property
    def people(self) -> frozenset[str]:
        """The users that may have cast the vote."""
        return frozenset((self.user_id, *self.created_by))


def has_voted(people: Collection[str], votes: Sequence[Vote]) -> bool:
    """Returns whether one of these users may have voted already, for themselves or as a delegate."""
    return any(not vote.people.isdisjoint(people) for vote in votes)


def is_taken(reviewer_id: str, votes: Sequence[Vote]) -> bool:
    """Returns whether a vote was already cast on behalf of this user."""
    return any(vote.reviewer_id == reviewer_id for vote in votes)


class Decision(StrEnum):
    """The decisions that a reviewer can make."""

    APPROVE = "approve"
    EDIT = "edit"
    REJECT = "reject"
    RESPOND = "respond"


STATUS_AFTER = {
    Decision.APPROVE: "approved",
    Decision.EDIT: "edited",
    Decision.REJECT: "rejected",
    Decision.RESPOND: "responded",
}


@dataclass(frozen=True, slots=True)
class ApprovalRecord:
    """The record of an approval."""

    status: str
    digest: str
    """The digest of the call in its current form."""
    expires_at: datetime
    now: datetime
    """The database's time."""
    requested_by: str
    reviewer_role: str
    allow_self_approval: bool
    decided_before: dict[str, object]
    """The first decision. The error of a later decision shows it."""
    editable: bool = True
    """True if the request has arguments that can be edited."""
    reviewers: tuple[str, ...] = ()
    assignee: str = ""
    votes: tuple[Vote, ...] = ()
    claim: ReviewClaim | None = None
    requester_is_admin: bool = False
    quorum: int = 1
    excluded: frozenset["Decision"] = frozenset()
    """The decisions that this decider's relation to the requester excludes (perdure/core/approvals/relations.py)."""
    exclusion: CallerError | None = None
    """The refusal of these decisions."""
    revision: int = 1
    """Grows with each message of the requester that joins while the request waits."""

    @property
    def panel(self) -> Panel:
        """The users who can decide."""
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
    """A user who makes a decision."""

    user_id: str
    roles: frozenset[str]
    name: str = ""
    in_place_of: tuple[Reviewer, ...] = ()
    """The users who currently delegate to this user."""
    credential: Credential = OWN_CREDENTIAL

    @property
    def people(self) -> frozenset[str]:
        """The users that may be acting as this user with this credential."""
        return self.credential.people(self.user_id)

    @property
    def represents(self) -> tuple[Reviewer, ...]:
        """The user first, then the users who delegate to them."""
        return (Reviewer(self.user_id, self.name, self.roles), *self.in_place_of)

    def sees(self, user_id: str) -> bool:
        """Returns whether this user can see that user's requests.

        If not, the answer must be "not found", whatever else is wrong with the request.
        """
        return self.user_id == user_id or bool(self.roles & DECIDING_ROLES)


def decision_refusal(
    record: ApprovalRecord,
    decider: Decider,
    decision: Decision,
    digest: str,
    revision: int | None = None,
    *,
    reasoned: bool,
    args_given: bool,
    text: bool,
    unfit: CallerError | None = None,
) -> CallerError | None:
    """Returns the first reason why this decision is refused, or None. `revision` is the one that the reviewer has seen,
    or None. `unfit` is a refusal of the route, which comes after the digest check."""
    refusal = participation_refusal(record, decider, decision)
    if refusal is not None:
        return refusal
    if revision is not None and revision < record.revision:
        return CallerError(
            "approval_revision_stale",
            "The requester has written since you opened the request; read `messages_since`, then decide again",
            {"revision": record.revision},
            status=409,
        )
    if digest != record.digest:
        return CallerError(
            "digest_differs",
            "This is not the digest of the call as it is now; review the call again and send its current digest",
            {"digest": record.digest},
            status=409,
        )
    return unfit or _form_refusal(record, decision, reasoned=reasoned, args_given=args_given, text=text)


def _form_refusal(
    record: ApprovalRecord, decision: Decision, *, reasoned: bool, args_given: bool, text: bool
) -> CallerError | None:
    """Returns what is missing in a decision, or what it must not have, or None."""
    if decision is Decision.REJECT and not reasoned:
        return CallerError("reason_required", "A rejection needs `comment` or `reason_code`", status=422)
    if decision is Decision.EDIT and not record.editable:
        return CallerError(
            "nothing_to_edit", "This request has no call to edit; approve, reject or respond", status=422
        )
    if decision is Decision.EDIT and not args_given:
        return CallerError("args_required", "An edit needs the new arguments in `args`", status=422)
    if decision is not Decision.EDIT and args_given:
        return CallerError("args_unexpected", "`args` is only valid with the decision `edit`", status=422)
    if decision is Decision.RESPOND and not text:
        return CallerError("comment_required", "A response needs its text in `comment`", status=422)
    return None


def participation_refusal(
    record: ApprovalRecord, decider: Decider, decision: Decision | None = None
) -> CallerError | None:
    """Returns why this user cannot make this decision here, or cannot make any, or None: first 403, then 409 or 410
    from the request's status."""
    try:
        reviewers = represented_reviewers(record.panel, decider.user_id, decider.represents, decider.credential)
    except CallerError as refused:
        return refused
    if decision in record.excluded:
        return record.exclusion
    closed = closed_refusal(record)
    if closed is not None:
        return closed
    if has_voted((decider.user_id,), record.votes) or all(is_taken(each.user_id, record.votes) for each in reviewers):
        return CallerError(
            "already_voted", "You have already decided on this call; other reviewers must decide, too", status=409
        )
    if has_voted(decider.people, record.votes) or (decider.credential.is_unknown and record.quorum > 1):
        return _same_voter_refusal(decider.credential)
    return held_by_another(record.claim, decider.user_id, record.now)


def _same_voter_refusal(credential: Credential) -> CallerError:
    """Returns the refusal of a vote that may come from a user with an earlier vote."""
    why = (
        "It is unknown who created your token or session"
        if credential.is_unknown
        else "The person who created your token or session has already voted, directly or with another token"
    )
    ways = "Sign in with your own password or with your organization's identity provider to vote as yourself"
    reason: dict[str, object] = {"reason": "credential_of_voter"}
    return CallerError("already_voted", f"{why}. {ways}", reason, status=409)


def closed_refusal(record: ApprovalRecord) -> CallerError | None:
    """Returns the refusal of a request that is no longer pending, or None."""
    if record.status == "expired" or (record.status == "pending" and record.expires_at <= record.now):
        expired = f"The request expired at {format_time(record.expires_at)} without a decision and counts as denied"
        return CallerError("approval_expired", expired, status=410)
    if record.status != "pending":
        now: dict[str, object] = {"status": record.status, "decision": record.decided_before}
        return CallerError("already_decided", _already_decided_text(record), now, status=409)
    return None


def represented_reviewer(record: ApprovalRecord, decider: Decider) -> Reviewer:
    """Returns the user on whose behalf an accepted decision is made: the decider, unless a vote was cast for them.

    Raises: CallerError 403 as in `decision_refusal`.
    """
    reviewers = represented_reviewers(record.panel, decider.user_id, decider.represents, decider.credential)
    return next((each for each in reviewers if not is_taken(each.user_id, record.votes)), reviewers[0])


def _already_decided_text(record: ApprovalRecord) -> str:
    """Returns the decision with its reviewer and time, or the status if no reviewer decided (a stopped turn)."""
    first = record.decided_before
    if "by" not in first or record.status == "withdrawn":  # Erasing a user also erases these details.
        return f"The request is already {record.status}"
    outcome = STATUS_AFTER[Decision(str(first["type"]))]
    return f"Already decided ({outcome}) by {first['by']} at {format_time(datetime.fromisoformat(str(first['at'])))}"


def counted_votes(votes: Sequence[Vote]) -> tuple[Vote, ...]:
    """Returns the approvals that count towards the quorum. If reviewers are named, at most one of the counted approvals
    is on behalf of another user. An assignee replaces one named reviewer, and only one, even if the request is
    reassigned repeatedly."""
    valid = [vote for vote in votes if vote.counts]
    surplus = [vote for vote in valid if not vote.is_named][1:]
    return tuple(vote for vote in valid if vote not in surplus)


def status_after(decision: Decision, quorum: int, votes: Sequence[Vote], vote: Vote, *, revised: bool) -> str:
    """Returns the request's status after this decision: `pending` if approvals are still missing.

    `vote` is the vote of this decision. `revised` means that the call was edited before; the status is then `edited`.

    A rejection or a response decides at once. Approvals need the quorum of the policy. An edit pins a changed call:
    earlier approvals were for another call and become void, and the editor's vote is the first.
    """
    if decision not in (Decision.APPROVE, Decision.EDIT):
        return STATUS_AFTER[decision]
    before = () if decision is Decision.EDIT else votes
    if len(counted_votes((*before, vote))) < quorum:
        return PENDING
    return STATUS_AFTER[Decision.EDIT if revised else decision]


@dataclass(frozen=True, slots=True)
class DecisionRequest:
    """The properties of an approval request that decide whether it can be approved in bulk."""

    kind: str
    agent_id: str
    tool: str
    tool_version: str
    risk: str


def single_decision_reason(kind: str, risk: str) -> str:
    """Returns why a request of this kind and risk must be approved on its own, or an empty string."""
    if kind == RequestKind.CHECKPOINT:
        return "a checkpoint must be reviewed on its own page"
    if kind != RequestKind.APPROVAL:
        return "a limit must be raised on its own page"
    return "" if risk == "low" else f"only low-risk calls can be approved in bulk; the risk of this call is {risk}"


def approvable_together(requests: Sequence[DecisionRequest]) -> bool:
    """Returns whether these requests can be approved in bulk. Only low-risk calls of one tool of one agent, in one
    version, can. All other requests are decided one by one."""
    # Another agent's tool of the same name can do something else.
    alike = len({(each.agent_id, each.tool, each.tool_version) for each in requests}) <= 1
    return alike and not any(single_decision_reason(each.kind, each.risk) for each in requests)
