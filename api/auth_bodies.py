"""Request bodies of what administrators and people say of access: signing in, the team, webhooks."""

from typing import Annotated

from pydantic import Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError

from api.bodies import Body, Role

Secret = Annotated[str, Field(min_length=8, max_length=200)]
NewName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9._-]{0,62}$")]
Tenant = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]


class RegisterBody(Body):
    """POST /v1/auth/register."""

    name: NewName
    password: Secret
    display_name: str = Field(default="", max_length=100)
    invitation: str = Field(default="", max_length=100)
    setup_code: str = Field(default="", max_length=100)
    """Of the first person of a tenant: `perdure up` and `python prepare.py` print it."""
    tenant: Tenant | None = None
    role: JsonValue = None
    """Ignored, like `roles`: what somebody may do is an administrator's to say (S2-60)."""
    roles: JsonValue = None


class LoginBody(Body):
    """POST /v1/auth/login: by name and password, or by a token."""

    name: str = Field(default="", max_length=63)
    password: str = Field(default="", max_length=200)
    token: str = Field(default="", max_length=500)
    tenant: Tenant | None = None

    @model_validator(mode="after")
    def _one_way(self) -> "LoginBody":
        if bool(self.token) == bool(self.name and self.password):
            raise PydanticCustomError("one_way", "send `name` and `password`, or `token`")
        return self


class RefreshBody(Body):
    """POST /v1/auth/refresh."""

    refresh_token: str = Field(max_length=200)


class PasswordBody(Body):
    """POST /v1/auth/password."""

    password: Secret
    current: str = Field(default="", max_length=200)


class ProfileBody(Body):
    """PATCH /v1/auth/me."""

    display_name: str = Field(min_length=1, max_length=100)
    role: JsonValue = None
    """Ignored, as when registering."""
    roles: JsonValue = None


class InviteBody(Body):
    """POST /v1/team/invitations."""

    name: NewName
    display_name: str = Field(default="", max_length=100)
    roles: tuple[Role, ...] = ("requester",)


class MemberBody(Body):
    """PATCH /v1/team/{name}: what is given is changed."""

    roles: tuple[Role, ...] | None = None
    display_name: str | None = Field(default=None, min_length=1, max_length=100)
    active: bool | None = Field(default=None, strict=True)


class WebhookBody(Body):
    """POST /v1/webhooks."""

    url: str = Field(min_length=1, max_length=500)
    with_args: bool = Field(default=False, strict=True)
    """Whether notices of what has a low risk carry the call's arguments."""
