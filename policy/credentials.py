"""How a caller is signed in, and who else may hold the credential: whoever created it can act by it.

Invariants:
- A credential that another person created decides nothing that this person requested, in no seat.
- Credentials that one person created, directly or through others, count as one person in a vote.
- A creator that is not on record may be any administrator.
"""

from dataclasses import dataclass
from enum import StrEnum

from contracts.errors import CallerError

UNKNOWN = "00000000-0000-0000-0000-000000000000"
"""Stands for a creator that is not on record."""


class How(StrEnum):
    """The ways to sign in."""

    PASSWORD = "password"
    REGISTRATION = "registration"
    INVITATION = "invitation"
    TOKEN = "token"
    CHAT = "chat"
    """A token of a chat's receiver."""
    LOCAL = "local"
    """A token that `prepare.py` made for the embedded stack."""
    LINK = "link"
    """A link that the embedded stack printed."""
    OIDC = "oidc"
    UNKNOWN = "unknown"
    """A session that was opened before this was recorded."""


@dataclass(frozen=True, slots=True)
class Credential:
    """What a request was signed in by."""

    how: How = How.UNKNOWN
    created_by: tuple[str, ...] = ()
    """User ids: the direct creator first, then the creators of the credential that it was created with. Empty: only
    its owner, or the operator of a local stack."""
    invited_by: tuple[str, ...] = ()
    """Whose invitation set the password of the account. The inviter could have redeemed it: it is shown, and no bar."""

    @property
    def is_unknown(self) -> bool:
        """Whether a creator is not on record."""
        return UNKNOWN in self.created_by

    def handed_on(self, user_id: str) -> tuple[str, ...]:
        """The creators of a credential that this user creates for another user while signed in by this one."""
        return (user_id, *(each for each in self.created_by if each != user_id))

    def people(self, user_id: str) -> frozenset[str]:
        """Everybody who may act as this user by this credential."""
        return frozenset((user_id, *self.created_by))

    def acts_for(self, requester: str, *, is_admin: bool) -> bool:
        """Whether the requester, who is an administrator or not, may be the one who acts by it."""
        return requester in self.created_by or (self.is_unknown and is_admin)

    def own_request(self) -> CallerError:
        """Why it does not decide on a request of one of its creators."""
        if self.is_unknown:
            why = "It is not on record who created the token or session that you use, and an administrator requested it"
        else:
            why = "The requester created the token or session that you use"
        return CallerError(
            "own_request",
            f"{why}, so it cannot decide on this request. Sign in with a password of your own or at your "
            "organization's provider, or use a token that another administrator created",
            {"signed_in": self.how.value, "reason": "credential_of_requester"},
            status=403,
        )


OWN = Credential()
"""One that nobody but its owner can hold."""
