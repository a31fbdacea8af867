"""Authentication: a request acts for the owner of the token in its header, or of the session in its cookie. Below
`/v1`, every path requires one of the two, except for signing in.

The intake authenticates before it reads the body. Without a token, every request gets the same response.
"""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

from fastapi import Depends, Query, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.types import Scope

from perdure.api import credentials
from perdure.api.credentials import Audience, TokenRefused
from perdure.api.services import Services
from perdure.contracts.errors import CallerError
from perdure.contracts.values import sha256_hex
from perdure.core.delivery import CHAT
from perdure.core.identity import (
    GATEWAY,
    MAX_SUBJECT_CHARACTERS,
    OWN_CREDENTIAL,
    SIGNED_PREFIX,
    SUBJECT_ROLE,
    Credential,
    SignInMethod,
    gateway_refusal,
    is_subject,
    sign_in_method,
)
from perdure.store.database import new_id
from perdure.store.identity import subjects
from perdure.store.identity.subjects import Subject
from perdure.store.identity.users import LOCAL

AUTHENTICATED_PREFIX = "/v1/"
"""Paths below this require a token or a session."""
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
"""Paths below `/v1` without authentication: they issue tokens and sessions."""
METRICS, STATUS = "/metrics", "/v1/status"
OPERATOR_PATHS = frozenset({METRICS, STATUS})
"""The only paths that operator tokens can read."""
SIGN_IN = "/sign-in"
"""The page that shows and receives the sign-in form; also the page after signing out. Like the open paths, it requires
no session."""
_bearer_scheme = HTTPBearer(
    auto_error=False,
    description="A token from `/v1/auth/login` or `perdure users token`, or a local token from run.json.",
)


def services_of(request: Request) -> Services:
    """Returns the clients and settings that all requests of this process share."""
    services: Services = request.app.state.services
    return services


ServicesDep = Annotated[Services, Depends(services_of)]


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated user."""

    tenant_id: str
    user_id: str
    name: str
    roles: frozenset[str]
    has_local_token: bool = False
    """True if the stack created the token for its own machine. False for a token that an administrator created."""
    is_in_chat: bool = False
    """True for a chat token. Its bearer can read one approval, and decide on it if its risk is low."""
    session_id: str | None = None
    """The session id, if the user signed in. Tokens that an administrator created have no session."""
    token_sha256: str = field(default="", repr=False)
    """The token's hash, if the request came with a token that is not of a session."""
    credential: Credential = OWN_CREDENTIAL
    """The sign-in method, and the users with possible access to the token besides its owner."""
    gateway: "Principal | None" = None
    """The gateway that sent the request, if the user is one of its subjects. The credential is the gateway's."""

    @property
    def is_gateway(self) -> bool:
        """True if a gateway sent the request, for itself or on behalf of a subject."""
        return self.gateway is not None or GATEWAY in self.roles

    @property
    def sees_tenant(self) -> bool:
        """True if this user can read the turns and approvals of all users."""
        return bool(self.roles & {"reviewer", "admin"})

    @property
    def scope(self) -> str | None:
        """The user whose rows are shown; None for all rows of the tenant."""
        return None if self.sees_tenant else self.user_id

    @property
    def is_operator(self) -> bool:
        """True if this user also runs the deployment: the owner of an embedded stack, on their own machine. Reviewers
        and administrators of a tenant elsewhere do not."""
        return self.has_local_token and self.sees_tenant

    def require_role(self, role: str) -> None:
        """Raises: CallerError 403 `role_required` if the user lacks this role."""
        if role not in self.roles:
            raise CallerError("role_required", f"This action requires the role {role}", {"role": role}, status=403)


async def owner_of(services: Services, authorization: str, cookie: str, *, secure: bool) -> Principal:
    """Returns the owner of the token in this Authorization header. Without a token, returns the owner of the session in
    this Cookie header.

    Raises: CallerError 401 if there is no valid token or session; the database's errors if it is unavailable.
    """
    if not authorization:
        owner = await session_owner(services, cookie, secure=secure)
        if owner is None:
            raise CallerError(
                "token_missing", "No token was sent; send `Authorization: Bearer <token>`, or sign in", status=401
            )
        return owner
    token = bearer_token_of(authorization)
    if not token:
        raise CallerError("token_missing", "No token was sent; send `Authorization: Bearer <token>`", status=401)
    if token.startswith(SIGNED_PREFIX):
        return await _session_principal(services, token, Audience.HEADER)
    return await token_principal(services, token)


def bearer_token_of(authorization: str) -> str:
    """Returns the token in an Authorization header, or an empty text."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


async def token_principal(services: Services, token: str) -> Principal:
    """Returns the owner of a token that an administrator or the stack created.

    Raises: CallerError 401 `token_invalid`.
    """
    digest = sha256_hex(token)
    row = await services.db.principal_row(digest)
    if row is None:
        raise CallerError("token_invalid", "This token is unknown", status=401)
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
        credential=Credential(
            SignInMethod.LOCAL if local else SignInMethod.CHAT if in_chat else SignInMethod.TOKEN, created_by
        ),
    )


async def has_same_access(services: Services, caller: Principal) -> bool:
    """Returns whether an authenticated user still has the same access: a valid session or token, and the same roles.

    The age of a signed token does not matter: it limits single requests, and this check is for streams.
    """
    if caller.gateway is not None:
        async with services.db.transaction(caller.tenant_id) as tx:
            if not await subjects.is_open(tx, caller.user_id):
                return False
        return await has_same_access(services, caller.gateway)
    if caller.session_id is not None:
        row = await services.db.session_row(caller.session_id)
    else:
        row = await services.db.principal_row(caller.token_sha256)
    return row is not None and frozenset(row["roles"]) == caller.roles


async def session_owner(services: Services, cookie: str, *, secure: bool) -> Principal | None:
    """Returns the owner of the session in this Cookie header, or None if the header has no session.

    Raises: CallerError 401 if the session has ended.
    """
    token = credentials.read_cookie(cookie, credentials.SESSION_COOKIE, secure=secure)
    return await _session_principal(services, token, Audience.COOKIE) if token else None


def session_in(services: Services, cookie: str, *, secure: bool) -> str | None:
    """Returns the session id in this Cookie header, verified by its signature alone. Only the database knows whether
    the session is still open."""
    token = credentials.read_cookie(cookie, credentials.SESSION_COOKIE, secure=secure)
    try:
        return services.tokens.session_of(token, Audience.COOKIE, datetime.now(UTC)) if token else None
    except TokenRefused:
        return None


async def _session_principal(services: Services, token: str, audience: Audience) -> Principal:
    try:
        session_id = services.tokens.session_of(token, audience, datetime.now(UTC))
    except TokenRefused as refused:
        raise CallerError("token_invalid", "This token is invalid or has expired", status=401) from refused
    row = await services.db.session_row(session_id)
    if row is None:
        raise CallerError("session_over", "Your session has ended; sign in again", status=401)
    created_by, invited_by = (tuple(map(str, row[name])) for name in ("created_by", "invited_by"))
    return Principal(
        row["tenant_id"],
        str(row["user_id"]),
        row["name"],
        frozenset(row["roles"]),
        has_local_token=services.local and row["local"],
        session_id=session_id,
        credential=Credential(sign_in_method(row["how"]), created_by, invited_by),
    )


async def principal(
    request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer_scheme)]
) -> Principal:
    """Returns the user whom the intake authenticated. The bearer scheme is declared for the API document."""
    authenticated: Principal = request.state.principal
    return authenticated


Authenticated = Annotated[Principal, Depends(principal)]
"""The owner of the token or session, also if a gateway acts on behalf of a subject."""
OnBehalfOfQuery = Annotated[
    str | None,
    Query(max_length=MAX_SUBJECT_CHARACTERS, description="Only for gateways: the subject on whose behalf you ask"),
]


def _acting_as(gateway: Principal, subject: Subject) -> Principal:
    """Returns the subject as the caller. Its credential is one that the gateway and the creators of the gateway's token
    can use.

    Raises: CallerError 403 `account_closed`.
    """
    if not subject.is_open:
        raise CallerError("account_closed", "The account of this subject is closed", status=403)
    return replace(
        gateway,
        user_id=subject.user_id,
        name=subject.name,
        roles=frozenset({SUBJECT_ROLE}),
        has_local_token=False,
        credential=replace(gateway.credential, created_by=gateway.credential.handed_on(gateway.user_id)),
        gateway=gateway,
    )


async def on_behalf_of(services: Services, caller: Principal, subject: str | None, name: str = "") -> Principal:
    """Returns the subject as the caller, or the caller if no subject is given. A subject is created when it is first
    used.

    Raises: CallerError 403 `on_behalf_of_not_allowed`, `account_closed`.
    """
    if subject is None:
        return caller
    require_gateway(caller)
    async with services.db.transaction(caller.tenant_id) as tx:
        found = await subjects.ensure_subject(tx, caller.user_id, caller.name, subject, name)
    return _acting_as(caller, found)


def require_gateway(caller: Principal) -> None:
    """Raises: CallerError 403 `on_behalf_of_not_allowed` if the caller cannot act on behalf of others."""
    if GATEWAY not in caller.roles:
        raise CallerError(
            "on_behalf_of_not_allowed",
            "Only users with the role gateway can send `on_behalf_of`",
            {"role": GATEWAY},
            status=403,
        )


async def owner_of_path(request: Request, services: ServicesDep, caller: Authenticated) -> Principal:
    """Returns the caller. A gateway acts as the owner of the object that the path names, if the owner is one of its
    subjects. This is the only place that decides it.

    Raises: CallerError 403 `account_closed`.
    """
    if GATEWAY not in caller.roles:
        return caller
    for kind in request.path_params.keys() & subjects.OWNED_IDS:
        object_id = str(request.path_params[kind])
        if kind != "effect_key" and not _is_uuid(object_id):
            continue
        async with services.db.transaction(caller.tenant_id) as tx:
            owner = await subjects.find_owner(tx, caller.user_id, kind, object_id)
        if owner is not None:
            return _acting_as(caller, owner)
    return caller


async def subject_of_query(
    request: Request, services: ServicesDep, caller: Authenticated, on_behalf_of: OnBehalfOfQuery = None
) -> Principal:
    """Returns the caller, or the subject of the query parameter `on_behalf_of`. Reading as a subject that was not used
    yet finds nothing, and creates no user.

    Raises: CallerError 403 `on_behalf_of_not_allowed`, `account_closed`; 422 `subject_invalid`.
    """
    if on_behalf_of is None:
        return caller
    require_gateway(caller)
    if not is_subject(on_behalf_of):
        raise CallerError("subject_invalid", "`on_behalf_of` is blank, too long, or not printable", status=422)
    async with services.db.transaction(caller.tenant_id) as tx:
        if request.method != "GET" and not request.url.path.endswith("/search"):
            found = await subjects.ensure_subject(tx, caller.user_id, caller.name, on_behalf_of, "")
        else:
            unused = Subject(new_id(), "", "", is_open=True)
            found = await subjects.find_subject(tx, caller.user_id, on_behalf_of) or unused
    return _acting_as(caller, found)


async def deciding_caller(caller: Authenticated) -> Principal:
    """Raises: CallerError 403 `gateway_cannot_decide` if a gateway sent the request, whatever other roles it has."""
    if caller.is_gateway:
        raise gateway_refusal()
    return caller


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


async def principal_or_operator(
    request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer_scheme)]
) -> Principal | None:
    """Returns the user whom the intake authenticated. Returns None for an operator token, which belongs to no user and
    no tenant."""
    return None if getattr(request.state, "is_operator", False) else await principal(request, _)


async def require_operator(caller: Annotated[Principal | None, Depends(principal_or_operator)]) -> None:
    """Raises: CallerError 403 `operator_required` if the user is not an operator."""
    if caller is not None and not caller.is_operator:
        raise CallerError(
            "operator_required",
            "This requires an operator token (PERDURE_OPERATOR_TOKEN); user tokens are not accepted",
            status=403,
        )


async def page_visitor(request: Request, services: ServicesDep) -> Principal | None:
    """Returns the user who opened a page, or None without a valid session."""
    try:
        return await session_owner(
            services, request.headers.get("cookie", ""), secure=uses_tls(services, request.scope)
        )
    except CallerError:
        return None


def uses_tls(services: Services, scope: Scope) -> bool:
    """Returns whether the browser uses TLS, to this server or to a proxy in front of it."""
    return services.signing_in.public_url.startswith("https://") or scope.get("scheme") == "https"


Caller = Annotated[Principal, Depends(owner_of_path)]
"""The user for whom a request acts."""
SubjectCaller = Annotated[Principal, Depends(subject_of_query)]
"""The user for whom a request acts, on paths without the id of an object that has an owner."""
DecidingCaller = Annotated[Principal, Depends(deciding_caller)]
"""The user of a decision, a settlement or a delegation."""
CallerOrOperator = Annotated[Principal | None, Depends(principal_or_operator)]
"""The user of a path in OPERATOR_PATHS; None is the operator."""
Operator = Annotated[None, Depends(require_operator)]
Visitor = Annotated[Principal | None, Depends(page_visitor)]
"""The user of a page outside `/v1`; None shows the sign-in page."""
