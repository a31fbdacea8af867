"""Who asks: the owner of a token in the header, or of the session in a browser's cookie. Nothing below `/v1` is open
without one, except for signing in.

The intake asks for the owner before it reads the body: to whoever has no token, every request is only that.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.types import Scope

from perdure.api import credentials
from perdure.api.credentials import Audience, TokenRefused
from perdure.api.services import Services
from perdure.contracts.errors import CallerError
from perdure.contracts.values import sha256_hex
from perdure.core.delivery import CHAT
from perdure.core.identity import OWN, Credential, How
from perdure.store.identity.users import LOCAL

GUARDED = "/v1/"
"""Paths below this need a token or a session."""
OPEN_PATHS = frozenset(
    {
        "/v1/auth/register",
        "/v1/auth/login",
        "/v1/auth/refresh",
        "/v1/auth/ways",
        "/v1/auth/oidc/start",
        "/v1/auth/oidc/callback",
    }
)
"""Except for these, by which one gets it."""
METRICS, STATUS = "/metrics", "/v1/status"
OPERATOR_PATHS = frozenset({METRICS, STATUS})
"""What the operator's tokens read, and all that they are for."""
SIGN_IN = "/sign-in"
"""Where the form is shown and sent to, and where a person lands who has signed out. Like the open paths it asks for no
session."""
_SIGNED = "eyJ"
"""What a signed token begins with: its header is a JSON object."""
_bearer = HTTPBearer(auto_error=False, description="From `/v1/auth/login`, `perdure users token`, or run.json.")


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
    is_in_chat: bool = False
    """A chat's receiver asks as this person: it may read one approval and decide on it, where its risk is low."""
    session_id: str | None = None
    """Of whoever signed in; a token of an administrator's making is no session."""
    token_sha256: str = field(default="", repr=False)
    """Of whoever came with such a token."""
    credential: Credential = OWN
    """How the user is signed in, and who else may hold the token."""

    @property
    def sees_tenant(self) -> bool:
        """Whether this user reads everybody's turns and approvals, and not only the own ones."""
        return bool(self.roles & {"reviewer", "admin"})

    @property
    def scope(self) -> str | None:
        """The user whose rows are shown; None for all of the tenant's."""
        return None if self.sees_tenant else self.user_id

    @property
    def is_operator(self) -> bool:
        """Whether this user also runs the deployment: the owner of an embedded stack, on their own machine. A tenant's
        reviewer or administrator elsewhere does not."""
        return self.has_local_token and self.sees_tenant

    def need(self, role: str) -> None:
        """Raises: CallerError 403 `role_required` without this role."""
        if role not in self.roles:
            raise CallerError("role_required", f"this needs the role {role}", {"role": role}, status=403)


async def owner_of(services: Services, authorization: str, cookie: str, *, secure: bool) -> Principal:
    """Whose token is in this Authorization header; without one, whose session is in this Cookie header.

    Raises: CallerError 401; what the database raises where it is away.
    """
    if not authorization:
        found = await visitor_of(services, cookie, secure=secure)
        if found is None:
            raise CallerError("token_missing", "send `Authorization: Bearer <token>`, or sign in", status=401)
        return found
    token = bearer_in(authorization)
    if not token:
        raise CallerError("token_missing", "send `Authorization: Bearer <token>`", status=401)
    if token.startswith(_SIGNED):
        return await _of_session(services, token, Audience.HEADER)
    return await of_token(services, token)


def bearer_in(authorization: str) -> str:
    """The token in an Authorization header; empty if it holds none."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


async def of_token(services: Services, token: str) -> Principal:
    """The owner of a token that an administrator or the stack made.

    Raises: CallerError 401 `token_invalid`.
    """
    digest = sha256_hex(token)
    row = await services.db.principal_row(digest)
    if row is None:
        raise CallerError("token_invalid", "this token is not known here", status=401)
    created_by = tuple(map(str, row["created_by"]))
    local = services.local and row["label"] == LOCAL and not created_by
    in_chat = row["label"] == CHAT
    return Principal(
        row["tenant_id"],
        str(row["user_id"]),
        row["name"],
        frozenset(row["roles"]),
        has_local_token=local,
        is_in_chat=in_chat,
        token_sha256=digest,
        credential=Credential(How.LOCAL if local else How.CHAT if in_chat else How.TOKEN, created_by),
    )


async def is_welcome(services: Services, who: Principal) -> bool:
    """Whether somebody who has come in is still who they were: neither signed out, nor shut out, nor of other roles.

    A signed token's age is no matter here: it is of one request, and this is of those that last.
    """
    if who.session_id is not None:
        row = await services.db.session_row(who.session_id)
    else:
        row = await services.db.principal_row(who.token_sha256)
    return row is not None and frozenset(row["roles"]) == who.roles


async def visitor_of(services: Services, cookie: str, *, secure: bool) -> Principal | None:
    """Whose session is in this Cookie header; None where there is none.

    Raises: CallerError 401 where there is one that is over.
    """
    token = credentials.read_cookie(cookie, credentials.SESSION_COOKIE, secure=secure)
    return await _of_session(services, token, Audience.COOKIE) if token else None


def session_in(services: Services, cookie: str, *, secure: bool) -> str | None:
    """The session in this Cookie header, by its signature alone: whether it is still open only the database knows."""
    token = credentials.read_cookie(cookie, credentials.SESSION_COOKIE, secure=secure)
    try:
        return services.tokens.session_of(token, Audience.COOKIE, datetime.now(UTC)) if token else None
    except TokenRefused:
        return None


async def _of_session(services: Services, token: str, audience: Audience) -> Principal:
    try:
        session_id = services.tokens.session_of(token, audience, datetime.now(UTC))
    except TokenRefused as refused:
        raise CallerError("token_invalid", "this token is not good here, or no longer", status=401) from refused
    row = await services.db.session_row(session_id)
    if row is None:
        raise CallerError("session_over", "this session is over; sign in again", status=401)
    made_by, invited_by = (tuple(map(str, row[name])) for name in ("created_by", "invited_by"))
    return Principal(
        row["tenant_id"],
        str(row["user_id"]),
        row["name"],
        frozenset(row["roles"]),
        has_local_token=services.local and row["local"],
        session_id=session_id,
        credential=Credential(_how(row["how"]), made_by, invited_by),
    )


def _how(kept: str) -> How:
    try:
        return How(kept)
    except ValueError:  # of a session that was opened before this was recorded
        return How.UNKNOWN


async def principal(request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]) -> Principal:
    """The owner whom the intake found; the bearer scheme is named for the documentation."""
    found: Principal = request.state.principal
    return found


async def principal_or_operator(
    request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Principal | None:
    """The owner whom the intake found; None for an operator's token, which belongs to no user and no tenant."""
    return None if getattr(request.state, "is_operator", False) else await principal(request, _)


async def operator(found: Annotated[Principal | None, Depends(principal_or_operator)]) -> None:
    """Raises: CallerError 403 `operator_required`."""
    if found is not None and not found.is_operator:
        raise CallerError(
            "operator_required", "This needs an operator's token (PERDURE_OPERATOR_TOKEN), not a user's", status=403
        )


async def visitor(request: Request, services: Open) -> Principal | None:
    """Who looks at a page; None for somebody who is not signed in, or not any more."""
    try:
        return await visitor_of(services, request.headers.get("cookie", ""), secure=is_secure(services, request.scope))
    except CallerError:
        return None


def is_secure(services: Services, scope: Scope) -> bool:
    """Whether the person's browser speaks TLS, here or to a proxy before it."""
    return services.signing_in.public_url.startswith("https://") or scope.get("scheme") == "https"


Reader = Annotated[Principal, Depends(principal)]
ReaderOrOperator = Annotated[Principal | None, Depends(principal_or_operator)]
"""Of a path in OPERATOR_PATHS; None is the operator."""
Operator = Annotated[None, Depends(operator)]
Visitor = Annotated[Principal | None, Depends(visitor)]
"""Of a page outside `/v1`, which shows the way in to whoever is None."""
