"""In whose place somebody may decide: the own seat, or that of a person who has delegated to them until a date.

Invariants:
- The requester sits in no seat, and nobody sits in the requester's, unless the policy lets people decide on their own.
- A seat is worth something while its owner has the role that is asked for, now, and is among the named reviewers where
  there are any; whoever it was assigned to counts as named.
- Who sits in it has that role too, now: a delegation lends the place of somebody who is named or assigned, and no role.
- A seat that was lent, or is sat in, by a credential of the requester's making is the requester's own.
- A seat is not handed on: who sits in somebody's place can neither delegate that place nor give it away.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.errors import CallerError
from policy.credentials import OWN, Credential

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
