"""Signing in: a password or a token becomes a session, with what its programs and its browser carry from then on."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from api import cookies
from api.access_tokens import Audience, until
from api.auth import is_secure, of_token
from api.auth_bodies import RegisterBody
from api.services import Services
from contracts.errors import CallerError
from policy.addresses import is_of_this_machine
from store import passwords, refresh_tokens, registration, sessions, sign_in_codes
from store.database import Connection
from store.sessions import Session

_OF_PROXIES = ("forwarded", "via", "x-forwarded-for", "x-real-ip")
"""With one of them a request came through a proxy, whose own address and Host header say nothing of the person."""
_TENANT = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A session, and what opens it."""

    session: Session
    tenant_id: str
    refresh_token: str


async def by_password(services: Services, tenant_id: str | None, name: str, password: str) -> SignedIn:
    """Sign in by name and password. Whether there is such a person nobody can tell, by answer or by time.

    Raises: CallerError 401 `sign_in_failed`; LimitReached `rate_limited`, `sign_in_busy`.
    """
    tenant_id = tenant_id or services.signing_in.tenant
    await services.rates.count("account", tenant_id, name)
    kept = None
    if _TENANT.fullmatch(tenant_id):
        async with services.db.transaction(tenant_id) as tx:
            kept = await passwords.of_name(tx, name)
    fits = await services.passwords.fits(password, kept.hash if kept else None)
    if kept is None or not fits:
        raise CallerError("sign_in_failed", "the name or the password is wrong", status=401)
    async with services.db.transaction(tenant_id) as tx:
        return await begin(services, tx, tenant_id, kept.user_id, how="password")


async def by_token(services: Services, token: str) -> SignedIn:
    """Sign in by a token that an administrator or the stack made.

    Raises: CallerError 401 `token_invalid`; 403 `chat_token`.
    """
    owner = await of_token(services, token.strip())
    if owner.is_in_chat:
        raise CallerError("chat_token", "a chat's token signs nobody in", status=403)
    async with services.db.transaction(owner.tenant_id) as tx:
        return await begin(services, tx, owner.tenant_id, owner.user_id, how="token", local=owner.has_local_token)


async def by_registration(services: Services, body: RegisterBody) -> SignedIn:
    """Take a name and a password, and be signed in.

    Raises: CallerError 403 `invitation_needed`, `invitation_invalid`; 409 `user_exists`, `name_erased`.
    """
    tenant = body.tenant or services.signing_in.tenant
    hashed = await services.passwords.hashed(body.password)
    async with services.db.transaction(tenant) as tx:
        user_id = await registration.register(
            tx,
            body.name,
            body.display_name,
            hashed,
            invitation=body.invitation,
            is_open=services.signing_in.open_registration,
            local=services.local,
        )
        return await begin(services, tx, tenant, user_id, how="registration")


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
        return await begin(services, tx, tenant_id, user_id, how="link", local=True)


def may_use_codes(services: Services, scope: Scope) -> bool:
    """Whether this is the embedded stack of one machine, asked by that machine."""
    caller, headers = scope.get("client") or ("", 0), Headers(scope=scope)
    is_direct = not any(name in headers for name in _OF_PROXIES)
    return services.local and is_direct and is_of_this_machine(caller[0], headers.get("host", ""))


def _no_code() -> CallerError:
    return CallerError("code_invalid", "this link was used before, or is too old, or is of another machine", status=401)


async def begin(
    services: Services, tx: Connection, tenant_id: str, user_id: str, *, how: str, local: bool = False
) -> SignedIn:
    """A session of this person, in the transaction that made sure of who it is."""
    lasts = services.signing_in.session_lasts
    session = await sessions.begin(tx, user_id, lasts, how=how, local=local)
    return SignedIn(session, tenant_id, await refresh_tokens.first(tx, tenant_id, session.id, lasts))


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


def forget(services: Services, scope: Scope, response: Response) -> None:
    """Take the cookie from the browser."""
    cookies.clear(response, cookies.SESSION, secure=is_secure(services, scope))
