"""Who the caller is, as calls and answers."""

from datetime import datetime

from pydantic import Field

from perdure.client.answers import Answer
from perdure.client.calls import Call, get, one, path


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


class SignInCode(Answer):
    """What a link has by which a browser of the stack's own machine signs in: `/sign-in?code=…`, once."""

    code: str = Field(repr=False)
    expires_at: datetime


def ways_in() -> Call[Ways]:
    """How one may sign in; nobody needs to be."""
    return get(path("auth", "ways"), one(Ways))


def new_code() -> Call[SignInCode]:
    """A code for the owner of a local token. No stored answer could repeat it, so it has no Idempotency-Key."""
    return Call("POST", path("auth", "codes"), one(SignInCode))


def who_am_i() -> Call[Me]:
    """Whose token or session this is."""
    return get(path("auth", "me"), one(Me))
