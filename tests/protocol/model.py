"""A reference model of the approval protocol, without imports of the product. Time is a number of seconds that only
`pass_time` moves, in steps of 1,000; each deadline lies 500 between two steps, so that none falls on one."""

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field

REQUESTER, ADMIN = "requester", "admin"
"""The requester of every call; the administrator."""
REVIEWER_ROLE, ADMIN_ROLE = "reviewer", "admin"
GIVEN = ("approved", "edited")
BEGUN = ("reserved", "done", "failed", "outcome_unknown")


class Refused(Exception):
    """The answer to a refused request: an HTTP status, for 409 with its code."""


@dataclass(frozen=True, slots=True)
class Policy:
    name: str
    quorum: int = 1
    reviewers: tuple[str, ...] = ()
    allow_self: bool = False
    escalates: bool = False
    fallback: str = ""
    hold_seconds: int = 0
    expires_seconds: int = 20_500
    fallback_seconds: int = 6_500


@dataclass(frozen=True, slots=True)
class Request:
    """One request, as it can be sent again."""

    verb: str
    user: str = ""
    call: int = 0
    decision: str = ""
    text: int = 0
    """The version of the arguments that the sender has seen."""
    amount: int | None = None
    """The new amount, for an edit."""
    comment: str = ""
    to: str = ""
    seconds: int = 0
    attempt: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Vote:
    """A decision that counts so far."""

    by: str
    owner: str
    role: str


@dataclass(slots=True)
class Call:
    """A gated call and its approval."""

    policy: Policy
    expires: int
    fallback: int | None
    role: str = REVIEWER_ROLE
    reviewers: tuple[str, ...] = ()
    status: str = "pending"
    version: int = 1
    text: int = 0
    edited: bool = False
    tampered: bool = False
    ready: int | None = None
    assignee: str = ""
    claim: tuple[str, int, int] = ("", 0, 0)
    votes: list[Vote] = field(default_factory=list)
    deciders: set[str] = field(default_factory=set)
    escalated: bool = False
    fell_back: bool = False
    ended: bool = False
    ledger: str = "planned"
    epoch: int = 0
    attempt: int = 0
    trail: Counter[str] = field(default_factory=lambda: Counter({"approval.opened": 1}))

    @property
    def intact(self) -> bool:
        """Returns whether the call would run as it was decided; an edit pins its own arguments."""
        return self.edited or not self.tampered


class Model:
    def __init__(self, people: dict[str, frozenset[str]], policies: dict[str, tuple[Policy, Policy]]) -> None:
        self.now = 0
        self.roles = dict(people)
        self.policies = policies
        """The first policy by name, and the one that it can be changed to."""
        self.published = dict.fromkeys(policies, 0)
        self.delegations: list[tuple[str, str, int]] = []
        """Delegator, delegate and end of each delegation."""
        self.calls: list[Call] = []

    def perform(self, request: Request) -> str:
        """Changes the records and returns the answer to a request. Raises Refused."""
        before = deepcopy(self.calls)
        try:
            return str(getattr(self, request.verb)(request))
        except Refused:
            self.calls = before
            raise

    def open(self, name: str) -> Call:
        """A call is planned and its approval opened, under the policy that is in force."""
        policy = self.policies[name][self.published[name]]
        fallback = self.now + policy.fallback_seconds if policy.fallback else None
        call = Call(policy, self.now + policy.expires_seconds, fallback, reviewers=policy.reviewers)
        self.calls.append(call)
        return call

    # Who may

    def would_count(self, call: Call, owner: str) -> bool:
        """Returns whether a decision for this user would count."""
        named = not call.reviewers or owner in call.reviewers or owner == call.assignee
        return named and call.role in self.roles[owner]

    def possible_owners(self, user: str) -> list[str]:
        """The user's own name, and their delegators in order."""
        given = {giver for giver, to, until in self.delegations if to == user and until > self.now}
        return [user, *sorted(given)]

    def still_holds(self, vote: Vote) -> bool:
        """Returns whether delegator and delegate both have the role that the decision required."""
        return all(vote.role in self.roles[name] for name in (vote.owner, vote.by))

    def owners(self, call: Call, user: str) -> list[str]:
        """The users for whom this user can decide; none without the required role, even by delegation."""
        if call.role not in self.roles[user]:
            return []
        owners = [owner for owner in self.possible_owners(user) if self.would_count(call, owner)]
        return owners if call.policy.allow_self else [owner for owner in owners if REQUESTER not in (owner, user)]

    def _open(self, call: Call) -> None:
        if call.status == "expired" or (call.status == "pending" and call.expires <= self.now):
            raise Refused("410")
        if call.status != "pending":
            raise Refused("409 already_decided")

    def _unclaimed(self, call: Call, user: str) -> None:
        holder, until, _ = call.claim
        if holder not in ("", user) and until > self.now:
            raise Refused("409 claimed")

    def _current(self, request: Request) -> Call:
        """The call at this moment: after its deadline it is escalated, if its policy says so."""
        call = self.calls[request.call]
        self._escalate_overdue(call)
        return call

    def _not_voted(self, call: Call, owners: list[str], user: str) -> None:
        taken = {vote.owner for vote in call.votes}
        if user in {vote.by for vote in call.votes} or not set(owners) - taken:
            raise Refused("409 already_voted")

    def _decidable(self, request: Request) -> tuple[Call, list[str]]:
        call = self._current(request)
        owners = self.owners(call, request.user)
        if not owners:
            raise Refused("403")
        self._open(call)
        return call, owners

    # Deciding

    def decide(self, request: Request) -> str:
        """Approve, edit, reject or respond."""
        call, owners = self._decidable(request)
        self._not_voted(call, owners, request.user)
        self._unclaimed(call, request.user)
        if request.text != call.text:
            raise Refused("409 digest_differs")
        if (request.decision == "edit") != (request.amount is not None) or (
            request.amount is not None and request.amount < 1
        ):
            raise Refused("422")
        if request.decision in ("reject", "respond") and not request.comment:
            raise Refused("422")
        if request.decision in ("approve", "edit") and call.policy != self._in_force(call):
            raise Refused("409 approval_outdated")
        owner = next(owner for owner in owners if owner not in {vote.owner for vote in call.votes})
        if request.decision == "edit":
            call.votes, call.text, call.edited = [], call.text + 1, True
        call.votes.append(Vote(request.user, owner, call.role))
        call.claim = ("", 0, 0)
        call.version += 1
        if request.decision in ("reject", "respond"):
            return self._decided(call, "rejected" if request.decision == "reject" else "responded")
        counted = [vote for vote in call.votes if self.still_holds(vote)]
        others = [vote for vote in counted if call.reviewers and vote.owner not in call.reviewers]
        if len(counted) - max(0, len(others) - 1) < call.policy.quorum:
            call.trail["approval.voted"] += 1
            return "pending"
        call.ready = self.now + call.policy.hold_seconds if call.policy.hold_seconds else None
        return self._decided(call, "edited" if call.edited else "approved")

    def _in_force(self, call: Call) -> Policy:
        """Its agent's policy as it is published now."""
        return self.policies[call.policy.name][self.published[call.policy.name]]

    def _decided(self, call: Call, status: str) -> str:
        call.trail["approval.decided"] += 1
        call.deciders = {vote.by for vote in call.votes}
        call.status, call.claim = status, ("", 0, 0)
        return status

    def withdraw(self, request: Request) -> str:
        call = self._current(request)
        admin = ADMIN_ROLE in self.roles[request.user]
        given = call.status in GIVEN or call.status in BEGUN
        entitled = request.user in call.deciders or (given and bool(self.owners(call, request.user)))
        if not admin and not entitled and (given or request.user != REQUESTER):
            raise Refused("403")
        if call.status in BEGUN:
            raise Refused("409 already_running")
        if call.status not in GIVEN:
            self._open(call)
        call.status, call.claim = "withdrawn", ("", 0, 0)
        call.version += 1
        call.trail["approval.withdrawn"] += 1
        return "withdrawn"

    # Handing over

    def claim(self, request: Request) -> str:
        call, owners = self._decidable(request)
        self._not_voted(call, owners, request.user)
        self._unclaimed(call, request.user)
        since = call.claim[2] if call.claim[0] == request.user and self.now < call.claim[1] + 300 else self.now
        if since + 3600 <= self.now:
            raise Refused("409 claimed_too_long")
        call.claim = (request.user, min(self.now + request.seconds, since + 3600), since)
        call.version += 1
        call.trail["approval.claimed"] += 1
        return "pending"

    def release(self, request: Request) -> str:
        call = self._current(request)
        holder, until, _ = call.claim
        admin = ADMIN_ROLE in self.roles[request.user]
        if holder != request.user and not admin and not self.owners(call, request.user):
            raise Refused("403")
        self._open(call)
        if not holder or until <= self.now:
            raise Refused("409 not_claimed")
        if holder != request.user and not admin:
            raise Refused("409 claimed")
        call.claim = (call.claim[0], min(call.claim[1], self.now), call.claim[2])
        call.version += 1
        call.trail["approval.released"] += 1
        return "pending"

    def _reassignable(self, request: Request) -> Call:
        """Reviewers can reassign a request. Admins can, unless they requested it."""
        call = self._current(request)
        owners = self.owners(call, request.user)
        asks_itself = request.user == REQUESTER and not call.policy.allow_self
        if request.user not in owners and (asks_itself or ADMIN_ROLE not in self.roles[request.user]):
            raise Refused("403")
        self._open(call)
        self._unclaimed(call, request.user)
        if call.reviewers and any(request.user in (vote.by, vote.owner) for vote in call.votes):
            raise Refused("409 already_voted")
        return call

    def reassign(self, request: Request) -> str:
        call = self._reassignable(request)
        voted = {vote.by for vote in call.votes} | {vote.owner for vote in call.votes}
        if (
            call.role not in self.roles[request.to]
            or (request.to == REQUESTER and not call.policy.allow_self)
            or request.to in voted
        ):
            raise Refused("422")
        if request.user in call.reviewers and request.to not in call.reviewers:
            call.reviewers = tuple(request.to if name == request.user else name for name in call.reviewers)
        call.assignee = request.to
        call.claim = (call.claim[0], min(call.claim[1], self.now), call.claim[2])
        call.version += 1
        call.trail["approval.reassigned"] += 1
        return "pending"

    def escalate(self, request: Request) -> str:
        call = self._reassignable(request)
        if call.escalated:
            raise Refused("409 already_escalated")
        self._escalated(call)
        return "pending"

    def _escalated(self, call: Call) -> None:
        call.role, call.reviewers, call.escalated = ADMIN_ROLE, (), True
        call.assignee, call.claim = "", ("", 0, 0)
        call.version += 1
        call.trail["approval.escalated"] += 1

    def delegate(self, request: Request) -> str:
        """Adds a delegation for a while, if both users can make the same kind of decision."""
        both = self.roles[request.user] & self.roles[request.to]
        if not both & {REVIEWER_ROLE, ADMIN_ROLE}:
            raise Refused("422")
        self.delegations.append((request.user, request.to, self.now + request.seconds))
        return "delegated"

    def set_role(self, request: Request) -> str:
        self.roles[request.user] = self.roles[request.user] ^ {REVIEWER_ROLE}
        return "set"

    # The clock

    def pass_time(self, request: Request) -> str:
        self.now += request.seconds
        return "later"

    def read(self, request: Request) -> str:
        """The turn reads its record and returns its state. An overdue request expires or is escalated."""
        call = self.calls[request.call]
        self._escalate_overdue(call)
        if call.status == "pending" and call.expires <= self.now:
            call.status = "expired"
            call.version += 1
            call.trail["approval.expired"] += 1
        if call.tampered:
            return "unreadable"
        if call.status in GIVEN and call.ready is not None and call.ready > self.now:
            return "pending"
        return "approved" if call.status in BEGUN else call.status

    def _escalate_overdue(self, call: Call) -> None:
        overdue = call.status == "pending" and call.expires <= self.now
        if overdue and call.policy.escalates and not call.escalated:
            self._escalated(call)
            call.expires = self.now + call.policy.expires_seconds

    def reconcile(self, request: Request) -> str:
        """The reconciler escalates overdue requests and assigns fallback reviewers."""
        waiting = [call for call in self.calls if not call.ended and call.status == "pending"]
        for call in waiting:
            self._escalate_overdue(call)
        for call in waiting:
            if call.expires > self.now:
                self._fall_back(call)
        return "reconciled"

    def _fall_back(self, call: Call) -> None:
        claimed = bool(call.claim[0]) and call.claim[1] > self.now
        if call.fallback is None or call.fallback > self.now or call.fell_back or claimed:
            return
        to = call.policy.fallback
        call.fell_back = True
        entitled = call.role in self.roles[to] and (to != REQUESTER or call.policy.allow_self)
        if not entitled and not call.escalated:
            self._escalated(call)
            return
        if entitled:
            call.assignee = to
        call.version += 1  # that no reviewer is left is recorded too
        call.trail["approval.fell_back"] += 1

    # Running

    def run(self, request: Request) -> str:
        """A worker's attempt asks whether it may send the call."""
        call = self.calls[request.call]
        if call.ledger in ("done", "failed", "denied"):
            return f"is {call.ledger}"
        if call.ledger == "outcome_unknown":
            return "is outcome_unknown"
        if call.ended:
            return "turn_ended"
        if call.attempt > request.attempt:
            return "stale_attempt"
        covers = call.intact and (call.policy == self._in_force(call) or call.status == "reserved")
        if call.status in (*GIVEN, "reserved") and covers:
            if call.status in GIVEN and call.ready is not None and call.ready > self.now:
                return "on_hold"
            call.version += call.status in GIVEN
            call.status = call.ledger = "reserved"
            call.epoch, call.attempt = call.epoch + 1, request.attempt
            return f"acts {call.epoch}"
        if call.ledger == "reserved":  # by an attempt that is dead, and may have sent it
            self._came_to(call, "outcome_unknown")
            return "is outcome_unknown"
        if call.status in GIVEN:
            call.version += 1
            call.trail["approval.voided"] += 1
            call.status = "pending" if call.intact else "cancelled"
            if call.intact:  # its policy has changed: it is asked again
                call.votes, call.deciders, call.ready, call.claim = [], set(), None, ("", 0, 0)
                call.expires = self.now + call.policy.expires_seconds
        if call.status == "pending":
            return "is planned"
        call.ledger = "denied"
        return "is denied"

    def settle(self, request: Request) -> str:
        call = self.calls[request.call]
        if request.epoch != call.epoch or call.ledger not in ("reserved", "outcome_unknown"):
            return "lost"
        self._came_to(call, "done")
        return "settled"

    def _came_to(self, call: Call, state: str) -> None:
        call.ledger = call.status = state
        call.version += 1
        call.trail["call.settled"] += 1

    def give_back(self, request: Request) -> str:
        """A worker reports that it sent nothing."""
        call = self.calls[request.call]
        if request.epoch == call.epoch and call.ledger == "reserved":
            call.ledger, call.status = "planned", "edited" if call.edited else "approved"
            call.version += 1
        return "given back"

    def end(self, request: Request) -> str:
        call = self.calls[request.call]
        if call.ended:
            return "over"
        call.ended = True
        if call.status in ("pending", *GIVEN):
            call.status = "cancelled"
            call.version += 1
            call.trail["approval.cancelled"] += 1
        if call.ledger == "reserved":
            self._came_to(call, "outcome_unknown")
        return "over"

    # Others' doing

    def tamper(self, request: Request) -> str:
        self.calls[request.call].tampered = True
        return "changed"

    def change_policy(self, request: Request) -> str:
        """The agent of this call is published with its other policy, or again with the first one."""
        name = self.calls[request.call].policy.name
        self.published[name] = 1 - self.published[name]
        return "published"
