"""Who the caller is, as calls and answers."""

from collections.abc import Sequence
from datetime import datetime

from pydantic import Field, JsonValue

from perdure.client.requests import Call, get, one, path
from perdure.schemas.agents import User
from perdure.schemas.answers import Answer, Page


class Me(Answer):
    """The caller."""

    name: str
    display_name: str = ""
    user_id: str = ""
    tenant: str = ""
    roles: list[str] = []
    form_token: str | None = None
    """Of a browser's session: what its forms send along. None for a token, which no other site can make a browser
    send."""


class Ways(Answer):
    """How one may sign in beside name and password."""

    oidc: bool = False
    open_registration: bool = False
    setup_code: bool = False
    """The first person may register with the setup code."""


class Registered(Answer):
    """A person who has registered, with the tokens of the session that this opened."""

    user: User
    access_token: str = Field(repr=False)
    refresh_token: str = Field(repr=False)
    expires_in: int = 0
    """Of the access token, in seconds."""


class SignInCode(Answer):
    """What a link has by which a browser of the stack's own machine signs in: `/sign-in?code=…`, once."""

    code: str = Field(repr=False)
    expires_at: datetime


def ways_in() -> Call[Ways]:
    """How one may sign in; nobody needs to be."""
    return get(path("auth", "ways"), one(Ways))


def register(
    name: str,
    password: str,
    *,
    setup_code: str | None = None,
    invitation: str | None = None,
    display_name: str | None = None,
    tenant: str | None = None,
) -> Call[Registered]:
    """Register with a password: the first person of a tenant with its setup code, later people with an invitation. No
    stored answer could repeat the tokens, so it has no Idempotency-Key."""
    given = {
        "name": name,
        "password": password,
        "setup_code": setup_code,
        "invitation": invitation,
        "display_name": display_name,
        "tenant": tenant,
    }
    body: JsonValue = {field: value for field, value in given.items() if value is not None}
    return Call("POST", path("auth", "register"), one(Registered), body=body)


def new_code() -> Call[SignInCode]:
    """A code for the owner of a local token. No stored answer could repeat it, so it has no Idempotency-Key."""
    return Call("POST", path("auth", "codes"), one(SignInCode))


def who_am_i() -> Call[Me]:
    """Whose token or session this is."""
    return get(path("auth", "me"), one(Me))


# --- The people of a tenant, for its administrators: the calls, and what the API answers.


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
