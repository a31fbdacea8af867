"""Signing in: a password or a token becomes a session, with what its programs and its browser carry from then on."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from api import cookies
from api.access_tokens import Audience, until
from api.auth import is_secure, of_token
from api.auth_bodies import RegisterBody
from api.guessing import guessing, keys_of, remember_device
from api.services import Services
from contracts.errors import CallerError
from policy.addresses import is_of_this_machine
from policy.credentials import Credential, How
from store import passwords, refresh_tokens, registration, sessions, sign_in_codes
from store.database import Connection
from store.registration import Newcomer
from store.sessions import Session

_OF_PROXIES = ("forwarded", "via", "x-forwarded-for", "x-real-ip")
"""With one of them a request came through a proxy, whose own address and Host header say nothing of the person."""
_TENANT = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_BY_PASSWORD = frozenset({How.PASSWORD, How.REGISTRATION, How.INVITATION})
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A session, and what opens it."""

    session: Session
    tenant_id: str
    refresh_token: str
    how: How = How.UNKNOWN


async def by_password(services: Services, scope: Scope, tenant_id: str | None, name: str, password: str) -> SignedIn:
    """Sign in by name and password. Neither the answer nor its time tells whether there is such a person.

    Raises: CallerError 401 `sign_in_failed`; LimitReached `sign_in_delayed`, `sign_in_busy`.
    """
    tenant_id = tenant_id or services.signing_in.tenant
    kept = None
    if _TENANT.fullmatch(tenant_id):
        async with services.db.transaction(tenant_id) as tx:
            kept = await passwords.of_name(tx, name)
    user_id = kept.user_id if kept else None
    async with guessing(services, keys_of(services, scope, tenant_id, name, user_id)) as guess:
        fits = await services.passwords.fits(password, kept.hash if kept else None)
        if kept is None or not fits:
            _log.info("sign_in_failed", tenant=tenant_id, user=user_id or "unknown")
            raise CallerError("sign_in_failed", "The name or the password is wrong", status=401)
        guess.right = True
    async with services.db.transaction(tenant_id) as tx:
        if await passwords.of_user(tx, kept.user_id, lock=True) != kept.hash:  # it was changed meanwhile
            raise CallerError("sign_in_failed", "The name or the password is wrong", status=401)
        return await begin(services, tx, tenant_id, kept.user_id, kept.credential)


async def by_token(services: Services, token: str) -> SignedIn:
    """Sign in by a token that an administrator or the stack made.

    Raises: CallerError 401 `token_invalid`; 403 `chat_token`.
    """
    owner = await of_token(services, token.strip())
    if owner.is_in_chat:
        raise CallerError("chat_token", "A chat token cannot open a session", status=403)
    async with services.db.transaction(owner.tenant_id) as tx:
        return await begin(services, tx, owner.tenant_id, owner.user_id, owner.credential, local=owner.has_local_token)


async def by_registration(services: Services, body: RegisterBody, authorization: str = "") -> SignedIn:
    """Take a name and a password, and be signed in. `authorization` may be a local administrator's, who lets the first
    person in.

    Raises: CallerError 401 `setup_code_needed`, `token_invalid`; 403 `setup_code_invalid`, `invitation_needed`,
    `invitation_invalid`; 409 `user_exists`, `name_erased`; 422 `password_weak`; LimitReached `sign_in_busy`.
    """
    tenant = body.tenant or services.signing_in.tenant
    vouched = await _is_vouched_for(services, tenant, authorization)
    comer = Newcomer(body.name, body.display_name, body.invitation, body.setup_code, vouched)
    rules = {"is_open": services.signing_in.open_registration, "local": services.local}
    async with services.db.transaction(tenant) as tx:
        display_name = await registration.invited_as(tx, comer)
        refused = None if comer.invitation else await registration.refusal(tx, comer, **rules)
    if refused is not None:  # raised after the commit, which keeps the count of wrong codes
        raise refused
    await services.passwords.refuse_weak(body.password, body.name, display_name, tenant)
    hashed = await services.passwords.hashed(body.password)
    async with services.db.transaction(tenant) as tx:
        user_id, credential, is_first = await registration.register(tx, comer, hashed, **rules)
        signed_in = await begin(services, tx, tenant, user_id, credential)
    if is_first and services.setup_code_file is not None:
        services.setup_code_file.unlink(missing_ok=True)  # the supervisor takes it out of run.json
    return signed_in


async def _is_vouched_for(services: Services, tenant_id: str, authorization: str) -> bool:
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        return False
    who = await of_token(services, token.strip())
    return who.has_local_token and "admin" in who.roles and who.tenant_id == tenant_id


async def by_code(services: Services, scope: Scope, code: str) -> SignedIn:
    """Sign in by the code of a link that the stack of this machine has printed; it is used up.

    Raises: CallerError 401 `code_invalid`.
    """
    tenant_id = sign_in_codes.tenant_of(code)
    if tenant_id is None or not may_use_codes(services, scope):
        raise _no_code()
    async with services.db.transaction(tenant_id) as tx:
        user_id = await sign_in_codes.take(tx, code)
        if user_id is None:
            raise _no_code()
        return await begin(services, tx, tenant_id, user_id, Credential(How.LINK), local=True)


def may_use_codes(services: Services, scope: Scope) -> bool:
    """Whether this is the embedded stack of one machine, asked by that machine."""
    caller, headers = scope.get("client") or ("", 0), Headers(scope=scope)
    is_direct = not any(name in headers for name in _OF_PROXIES)
    return services.local and is_direct and is_of_this_machine(caller[0], headers.get("host", ""))


def _no_code() -> CallerError:
    return CallerError("code_invalid", "This link was used, has expired, or is for another machine", status=401)


async def begin(
    services: Services, tx: Connection, tenant_id: str, user_id: str, credential: Credential, *, local: bool = False
) -> SignedIn:
    """A session of this person, in the transaction that made sure of who it is, by `credential`."""
    lasts = services.signing_in.session_lasts
    session = await sessions.begin(tx, user_id, lasts, credential, local=local)
    first = await refresh_tokens.first(tx, tenant_id, session.id, lasts)
    return SignedIn(session, tenant_id, first, credential.how)


def tokens_of(services: Services, signed_in: SignedIn) -> dict[str, object]:
    """What a program keeps of it."""
    now, session = datetime.now(UTC), signed_in.session
    ends = until(now, services.signing_in.access_lasts, session.expires_at)
    issue = services.tokens.issue
    return {
        "access_token": issue(Audience.HEADER, session.id, signed_in.tenant_id, session.user_id, until=ends),
        "token_type": "Bearer",
        "expires_in": int((ends - now).total_seconds()),
        "refresh_token": signed_in.refresh_token,
        "refresh_expires_at": session.expires_at,
    }


def remember(services: Services, scope: Scope, response: Response, signed_in: SignedIn) -> None:
    """Give the browser its cookie."""
    session = signed_in.session
    token = services.tokens.issue(
        Audience.COOKIE, session.id, signed_in.tenant_id, session.user_id, until=session.expires_at
    )
    secure = is_secure(services, scope)
    cookies.put(response, cookies.SESSION, token, secure=secure, expires=session.expires_at)
    if signed_in.how in _BY_PASSWORD:
        remember_device(services, scope, response, signed_in.tenant_id, session.user_id)


def forget(services: Services, scope: Scope, response: Response) -> None:
    """Take the cookie from the browser."""
    cookies.clear(response, cookies.SESSION, secure=is_secure(services, scope))
