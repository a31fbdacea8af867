"""Who asks: a bearer token's owner. No route but health is open without one."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from api.services import Services
from contracts.digests import sha256_hex
from contracts.errors import CallerError

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


async def principal(
    services: Open, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Principal:
    """The owner of the request's token.

    Raises: CallerError 401.
    """
    if credentials is None:
        raise CallerError("token_missing", "send `Authorization: Bearer <token>`", status=401)
    row = await services.db.principal_row(sha256_hex(credentials.credentials))
    if row is None:
        raise CallerError("token_invalid", "this token is not known here", status=401)
    return Principal(row["tenant_id"], str(row["user_id"]), row["name"], frozenset(row["roles"]))


Reader = Annotated[Principal, Depends(principal)]
