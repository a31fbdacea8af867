"""Responses about the caller, sign-in, registration and the tenant's accounts."""

from datetime import datetime

from pydantic import Field

from perdure.schemas.agents import User
from perdure.schemas.base import Answer


class Me(Answer):
    """The caller."""

    name: str
    display_name: str = ""
    user_id: str = ""
    tenant: str = ""
    roles: list[str] = []
    form_token: str | None = None
    """The form token of a browser session, which its forms must send. None for a token, because no other site can make
    a browser send it."""


class SetupCodeEnd(Answer):
    """The end of the setup code, with its reason."""

    reason: str
    """`used`, `administrator_exists`, `expired` or `missing`."""
    at: datetime | None = None


class Ways(Answer):
    """The sign-in methods in addition to name and password."""

    oidc: bool = False
    open_registration: bool = False
    setup_code: bool = False
    """True if the first user can register with the setup code."""
    setup_code_ended: SetupCodeEnd | None = None
    """Set if the code has ended and there is no administrator, or has been one for less than a day."""


class Registered(Answer):
    """A newly registered user, with the tokens of the new session."""

    user: User
    access_token: str = Field(repr=False)
    refresh_token: str = Field(repr=False)
    expires_in: int = 0
    """The lifetime of the access token in seconds."""


class SignInCode(Answer):
    """A sign-in code for the link `/sign-in?code=…`. It works once, for a browser on the machine of the stack."""

    code: str = Field(repr=False)
    expires_at: datetime


class Member(Answer):
    """An account of the tenant."""

    name: str
    display_name: str = ""
    roles: list[str] = []
    active: bool = True
    """True if the account is open."""
    has_password: bool = False
    has_identity: bool = False
    """True if the user signs in through an external provider."""
    invited_until: datetime | None = None


class Invitation(Answer):
    """An invitation, which works once. Its holder sets the password of the account."""

    name: str
    invitation: str = Field(repr=False)
    expires_at: datetime | None = None
