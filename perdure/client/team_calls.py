"""The people of a tenant, for its administrators: the calls, and what the API answers."""

from collections.abc import Sequence
from datetime import datetime

from pydantic import Field, JsonValue

from perdure.client.answers import Answer, Page
from perdure.client.calls import Call, get, one, path


class Member(Answer):
    """Somebody of the tenant."""

    name: str
    display_name: str = ""
    roles: list[str] = []
    active: bool = True
    """Whether the account is open."""
    has_password: bool = False
    has_identity: bool = False
    """Signs in by a provider elsewhere."""
    invited_until: datetime | None = None


class Invitation(Answer):
    """A way in, once: who has it sets the password of that name."""

    name: str
    invitation: str = Field(repr=False)
    expires_at: datetime | None = None


def list_team() -> Call[Page[Member]]:
    """Everybody, those with a closed account too."""
    return get(path("team"), one(Page[Member]))


def invite(name: str, roles: Sequence[str] = ("requester",), *, display_name: str = "") -> Call[Invitation]:
    """Somebody new. The invitation is told this once: no stored answer could repeat it, so it has no key."""
    body: dict[str, JsonValue] = {"name": name, "roles": list(roles), "display_name": display_name}
    return Call("POST", path("team", "invitations"), one(Invitation), body=body)


def invite_again(name: str) -> Call[Invitation]:
    """A new invitation for somebody who is there; one before is void."""
    return Call("POST", path("team", name, "invitation"), one(Invitation))


def reopen(name: str) -> Call[Member]:
    """Open a closed account again."""
    return Call("PATCH", path("team", name), one(Member), body={"active": True})


def close(name: str) -> Call[Member]:
    """Close an account: its sessions end, its tokens open nothing. What the person did stays."""
    return Call("DELETE", path("team", name), one(Member))
