"""Who asks: a bearer token's owner. Nothing below `/v1` is open without one.

The intake asks for the owner before it reads the body: to whoever has no token, every request is only that.
"""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from api.services import Services
from contracts.digests import sha256_hex
from contracts.errors import CallerError

GUARDED = "/v1/"
"""Paths below this need a token."""
_bearer = HTTPBearer(auto_error=False, description="A token from `perdure users token`, or a local one of run.json.")


def services_of(request: Request) -> Services:
    """The clients of this process."""
    services: Services = request.app.state.services
    return services


Open = Annotated[Services, Depends(services_of)]


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated user."""

    tenant_id: str
    user_id: str
    name: str
    roles: frozenset[str]
    has_local_token: bool = False
    """Made by the stack for its own machine, and not by an administrator for a person."""

    @property
    def sees_tenant(self) -> bool:
        """Whether this user reads everybody's turns and approvals, and not only the own ones."""
        return bool(self.roles & {"reviewer", "admin"})

    @property
    def scope(self) -> str | None:
        """The user whose rows are shown; None for all of the tenant's."""
        return None if self.sees_tenant else self.user_id

    def need(self, role: str) -> None:
        """Raises: CallerError 403 `role_required` without this role."""
        if role not in self.roles:
            raise CallerError("role_required", f"this needs the role {role}", {"role": role}, status=403)


async def owner_of(services: Services, authorization: str) -> Principal:
    """The owner of the token in this header.

    Raises: CallerError 401; what the database raises where it is away.
    """
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise CallerError("token_missing", "send `Authorization: Bearer <token>`", status=401)
    row = await services.db.principal_row(sha256_hex(token.strip()))
    if row is None:
        raise CallerError("token_invalid", "this token is not known here", status=401)
    local = services.local and row["label"] == "local"
    return Principal(row["tenant_id"], str(row["user_id"]), row["name"], frozenset(row["roles"]), local)


async def principal(request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]) -> Principal:
    """The owner whom the intake found; the bearer scheme is named for the documentation."""
    found: Principal = request.state.principal
    return found


Reader = Annotated[Principal, Depends(principal)]
