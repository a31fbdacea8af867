"""Relations between a requester and a reviewer: whether one person may be behind both, and which decisions that
excludes.

Invariants:
- A relation never excludes a rejection or a response: neither runs a call.
- A relation excludes decisions only on high-risk calls, and only while the tenant does not allow them.
- Without a record there is no relation.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import JsonValue

from perdure.contracts.approvals import RequestKind
from perdure.contracts.errors import CallerError
from perdure.core.approvals.decisions import Decision
from perdure.core.identity import UNKNOWN_CREATOR, SignInMethod

_HIGH_RISK = "high"


class Opening(StrEnum):
    """The ways to open an account."""

    UNKNOWN = ""
    """Opened before this was recorded, or by the operator."""
    SETUP_CODE = "setup_code"
    INVITATION = "invitation"
    REGISTRATION = "registration"
    """Registered by its owner, without an invitation."""
    PROVIDER = "provider"
    ADDED = "added"
    """Added by an administrator."""


class Relation(StrEnum):
    """The reasons why one user may be another."""

    CREDENTIAL = "credential"
    """The user created the other's token or session."""
    OPENED_AS = "opened_as"
    """The client that opened the other's account was signed in as the user, then or earlier."""
    INVITER = "inviter"
    """The user invited the other, and nothing shows that another person redeemed the invitation."""
    ROLE_GIVER = "role_giver"
    """The user gave the roles to the other's account, which was registered without an invitation."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The recorded origin of an account. The sets of users are complete: they contain the users behind the users
    that they name."""

    opened: Opening = Opening.UNKNOWN
    opened_as: tuple[str, ...] = ()
    invited_by: tuple[str, ...] = ()
    invited_near: bool | None = None
    """True if the invitation was redeemed at the client address where it was made, or in a browser of the inviter. None
    if it is unknown."""
    roles_by: tuple[str, ...] = ()
    """The users who last set the roles."""


@dataclass(frozen=True, slots=True)
class Party:
    """One side of a decision: a user, with the credential that was used."""

    user_id: str
    created_by: tuple[str, ...] = ()
    """The creators of the credential."""
    how: SignInMethod = SignInMethod.UNKNOWN
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """The origins of the user and of the creators."""

    def certain(self) -> dict[str, Relation | None]:
        """Returns the users that this party is, each with the reason; None for the user itself."""
        opened_as = self.origins.get(self.user_id, Origin()).opened_as
        return {**_known(opened_as, Relation.OPENED_AS), self.user_id: None}

    def possible(self) -> dict[str, Relation | None]:
        """Returns the users that this party may be in addition, each with the reason.

        The creators of a credential can use it. An inviter or role giver counts if nothing shows another person; a
        sign-in through an identity provider shows one.
        """
        found = _known(self.created_by, Relation.CREDENTIAL)
        for user in (self.user_id, *self.created_by):
            origin = self.origins.get(user, Origin())
            if user != self.user_id:
                found = _known(origin.opened_as, Relation.OPENED_AS) | found
            if self.how is SignInMethod.OIDC:
                continue
            if origin.opened is Opening.INVITATION and origin.invited_near:
                found = _known(origin.invited_by, Relation.INVITER) | found
            if origin.opened is Opening.REGISTRATION:
                found = _known(origin.roles_by, Relation.ROLE_GIVER) | found
        certain = self.certain()
        return {user: why for user, why in found.items() if user not in certain}


def _known(users: Iterable[str], why: Relation) -> dict[str, Relation | None]:
    return {user: why for user in users if user != UNKNOWN_CREATOR}


@dataclass(frozen=True, slots=True)
class Related:
    """One reason why the requester and the reviewer may be one person."""

    relation: Relation
    of: str
    """`requester` or `reviewer`: the side that the reason is about."""
    by: str
    """A user id: this user may be behind that side."""


def relations_of(requester: Party, reviewer: Party) -> tuple[Related, ...]:
    """Returns why one person may be behind both parties; empty if no record gives a reason.

    Two parties are not related if they share only an inviter, or the creator of their tokens. All members of a team
    with one administrator share that user.
    """
    if requester.user_id == reviewer.user_id:
        return ()
    found: dict[Related, None] = {}
    sides = (
        (requester.certain(), reviewer.certain()),
        (requester.certain(), reviewer.possible()),
        (requester.possible(), reviewer.certain()),
    )
    for of_requester, of_reviewer in sides:
        for user in of_requester.keys() & of_reviewer.keys():
            for side, relation in (("requester", of_requester[user]), ("reviewer", of_reviewer[user])):
                if relation is not None:
                    found[Related(relation, side, user)] = None
    return tuple(sorted(found, key=lambda each: (each.of, each.relation, each.by)))


_RUNNING = frozenset({Decision.APPROVE, Decision.EDIT})


def excluded_decisions(
    related: Iterable[Related], kind: str, tool: str, risk: str, *, is_allowed: bool
) -> frozenset[Decision]:
    """Returns the decisions that the relations exclude. `is_allowed` is the tenant's setting. A limit has no call."""
    applies = any(related) and risk == _HIGH_RISK and bool(tool) and kind != RequestKind.LIMIT and not is_allowed
    return _RUNNING if applies else frozenset()


_WORDS = {
    (Relation.CREDENTIAL, "requester"): "{by} created the token or session with which the request was made",
    (Relation.CREDENTIAL, "reviewer"): "{by} created your token or session",
    (
        Relation.OPENED_AS,
        "requester",
    ): "the requester's account was opened by a client that was, then or earlier, signed in as {by}",
    (
        Relation.OPENED_AS,
        "reviewer",
    ): "your account was opened by a client that was, then or earlier, signed in as {by}",
    (
        Relation.INVITER,
        "requester",
    ): "{by} invited the requester, who accepted from the same network address or browser",
    (Relation.INVITER, "reviewer"): "{by} invited you, and you accepted from the same network address or browser",
    (Relation.ROLE_GIVER, "requester"): "{by} gave the requester, who registered without an invitation, their roles",
    (Relation.ROLE_GIVER, "reviewer"): "{by} gave you, who registered without an invitation, your roles",
}


def describe_relations(related: Iterable[Related], names: Mapping[str, str]) -> list[JsonValue]:
    """Returns the relations for a record, with names instead of ids."""
    return [{"relation": each.relation.value, "of": each.of, "by": names.get(each.by, "")} for each in related]


def provider_side(related: Sequence[Related]) -> str:
    """Returns the side whose sign-in through an identity provider would end these relations: `requester` or `reviewer`;
    empty if that of one side does not."""
    if any(each.relation not in (Relation.INVITER, Relation.ROLE_GIVER) for each in related):
        return ""
    sides = {each.of for each in related}
    return sides.pop() if len(sides) == 1 else ""


_PROVIDER_WAYS = {
    "": "",
    "requester": ", or you, if the requester makes it again while signed in through your organization's identity "
    "provider",
    "reviewer": ", or you, signed in through your organization's identity provider",
}


def related_refusal(related: Sequence[Related], names: Mapping[str, str]) -> CallerError:
    """Returns the refusal of a decision that the relations exclude. `names` has the names of users by id."""
    why = "; ".join(_WORDS[each.relation, each.of].format(by=names.get(each.by, "a user")) for each in related)
    side = provider_side(related)
    return CallerError(
        "four_eyes_related",
        f"You and the requester may be one person: {why}. You can reject this high-risk call. A reviewer who is not "
        f"related to the requester can approve it{_PROVIDER_WAYS[side]}. In a team of two, such as in one office, an "
        "administrator allows such decisions for the tenant with `perdure rules related --allow`",
        {"related": describe_relations(related, names), "setting": "related_decide", "provider_side": side},
        status=403,
    )
