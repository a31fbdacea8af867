"""Signing in: exchanges a password, a token or a code for a session, with its tokens for programs and its cookie for
browsers."""

import re
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil

import structlog
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from perdure.api import credentials
from perdure.api.auth import Principal, bearer_token_of, owner_of, session_owner, token_principal, uses_tls
from perdure.api.credentials import Audience, token_expiry
from perdure.api.request_bodies import RegisterBody
from perdure.api.services import Services
from perdure.contracts.errors import CallerError, LimitReached, PerdureError
from perdure.core.identity import Credential, SignInMethod, device_mark
from perdure.core.passwords import ACCOUNT, ADDRESS, DEVICE, PLACE, wait_left
from perdure.core.request_origin import counted_as, is_of_this_machine
from perdure.store.database import Connection
from perdure.store.identity import registration, sign_in
from perdure.store.identity.registration import Client, Newcomer
from perdure.store.identity.sign_in import Key, Session

_PROXY_HEADERS = ("forwarded", "via", "x-forwarded-for", "x-real-ip")
"""Headers of proxies. With one of them, the request's address and Host header are the proxy's and do not identify the
user."""
_TENANT_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_PASSWORD_METHODS = frozenset({SignInMethod.PASSWORD, SignInMethod.REGISTRATION, SignInMethod.INVITATION})
DEVICE_LIFETIME = timedelta(days=180)
_DEVICE_COOKIE = "perdure_device"
_DEVICE_SEAL_PURPOSE = "known device"
_INVITED_AT_PURPOSE = "address of an invitation"
_MAX_COUNT_ATTEMPTS = 20
"""The number of times that counting an attempt is retried if others are counted at the same time."""
_WAY_OUT = (
    "The code is still valid: wait, or register from another address; `python -m perdure.apps.bootstrap` with the same "
    "settings prints a new code and ends the wait"
)
_LOCAL_WAY_OUT = (
    "The code is still valid: wait, or register without it on this machine with `perdure users register NAME`; a new "
    "start of the stack ends the wait"
)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A session and its first refresh token."""

    session: Session
    tenant_id: str
    refresh_token: str
    how: SignInMethod = SignInMethod.UNKNOWN


async def by_password(services: Services, scope: Scope, tenant_id: str | None, name: str, password: str) -> SignedIn:
    """Signs in with name and password. Neither the response nor its time reveals whether the user exists.

    Raises: CallerError 401 `sign_in_failed`; LimitReached `sign_in_delayed`, `sign_in_busy`.
    """
    tenant_id = tenant_id or services.signing_in.tenant
    account = None
    if _TENANT_ID.fullmatch(tenant_id):
        async with services.db.transaction(tenant_id) as tx:
            account = await sign_in.password_of_name(tx, name)
    user_id = account.user_id if account else None
    async with password_attempt(services, guess_keys(services, scope, tenant_id, name, user_id)) as attempt:
        is_correct = await services.passwords.is_correct(password, account.hash if account else None)
        if account is None or not is_correct:
            _log.info("sign_in_failed", tenant=tenant_id, user=user_id or "unknown")
            raise CallerError("sign_in_failed", "The name or the password is wrong", status=401)
        attempt.is_right = True
    async with services.db.transaction(tenant_id) as tx:
        # The password was changed in the meantime.
        if await sign_in.password_of_user(tx, account.user_id, lock=True) != account.hash:
            raise CallerError("sign_in_failed", "The name or the password is wrong", status=401)
        return await open_session(services, tx, tenant_id, account.user_id, account.credential)


async def by_token(services: Services, token: str) -> SignedIn:
    """Signs in with a token that an administrator or the stack created.

    Raises: CallerError 401 `token_invalid`; 403 `chat_token`.
    """
    owner = await token_principal(services, token.strip())
    if owner.is_in_chat:
        raise CallerError("chat_token", "Chat tokens cannot be used to sign in", status=403)
    async with services.db.transaction(owner.tenant_id) as tx:
        return await open_session(
            services, tx, owner.tenant_id, owner.user_id, owner.credential, local=owner.has_local_token
        )


async def by_registration(services: Services, scope: Scope, body: RegisterBody) -> SignedIn:
    """Registers a user and signs in. The Authorization header can hold a local administrator's token, which allows the
    first user to register.

    Raises: CallerError 401 `setup_code_needed`, `token_invalid`; 403 `setup_code_invalid`, `invitation_needed`,
    `invitation_invalid`; 409 `user_exists`, `name_erased`; 422 `password_weak`; LimitReached `too_many_tries`,
    `sign_in_busy`.
    """
    tenant = body.tenant or services.signing_in.tenant
    bearer = await _bearer(services, Headers(scope=scope).get("authorization", ""))
    is_vouched_for = (
        bearer is not None and bearer.has_local_token and "admin" in bearer.roles and bearer.tenant_id == tenant
    )
    client = await _client_of(services, scope, tenant, bearer)
    address = _address_of(scope)
    newcomer = Newcomer(body.name, body.display_name, body.invitation, body.setup_code, is_vouched_for, address, client)
    rules = {"is_open": services.signing_in.open_registration, "local": services.local}
    async with services.db.transaction(tenant) as tx:
        display_name = await registration.invited_as(tx, newcomer)
        refusal = None if newcomer.invitation else await registration.registration_refusal(tx, newcomer, **rules)
    if refusal is not None:  # Raised after the commit, which stores the number of wrong codes.
        _report_wait(services, tenant, address, refusal)
        raise refusal
    await services.passwords.refuse_weak(body.password, body.name, display_name, tenant)
    hashed = await services.passwords.hash_password(body.password)
    async with services.db.transaction(tenant) as tx:
        user_id, credential, is_first = await registration.register(tx, newcomer, hashed, **rules)
        signed_in = await open_session(services, tx, tenant, user_id, credential)
    if is_first and tenant == services.signing_in.tenant:
        remove_setup_code_file(services)
    return signed_in


def remove_setup_code_file(services: Services) -> None:
    """Removes the plain setup code, if the embedded stack keeps one. The supervisor then removes it from run.json."""
    if services.setup_code_file is not None:
        services.setup_code_file.unlink(missing_ok=True)


def _report_wait(services: Services, tenant: str, address: str, refusal: PerdureError) -> None:
    """Logs, once for each wait, that an address must wait after wrong setup codes. `perdure up` shows the line."""
    if refusal.details.get("tries_left") != 0:
        return
    seconds = refusal.details["retry_after_seconds"]
    way_out = _LOCAL_WAY_OUT if services.local else _WAY_OUT
    _log.warning("setup_code_tries_limited", tenant=tenant, address=address, wait_seconds=seconds, way_out=way_out)


async def _bearer(services: Services, authorization: str) -> Principal | None:
    """Returns the owner of the token in this header, or None without a token.

    Raises: CallerError 401 if the token is invalid.
    """
    return await owner_of(services, authorization, "", secure=False) if bearer_token_of(authorization) else None


async def _client_of(services: Services, scope: Scope, tenant_id: str, bearer: Principal | None) -> Client:
    """Returns what the registering client shows of other users: its own session or token, its address, and the users
    who have signed in with its browser."""
    owner, cookie = bearer, Headers(scope=scope).get("cookie", "")
    if owner is None:
        with suppress(CallerError):  # An ended session shows nothing.
            owner = await session_owner(services, cookie, secure=uses_tls(services, scope))
    is_here = owner is not None and owner.tenant_id == tenant_id
    address, keys = _address_of(scope), services.tokens.keys
    return Client(
        owner.credential.handed_on(owner.user_id) if owner is not None and is_here else (),
        lambda digest: keys.verifies(digest, _INVITED_AT_PURPOSE, tenant_id, address),
        lambda user_id: bool(_known_device(services, scope, tenant_id, user_id)),
        credentials.cookies_after(cookie, f"{_DEVICE_COOKIE}_", secure=uses_tls(services, scope)),
    )


def invited_at(services: Services, scope: Scope, tenant_id: str) -> str:
    """Returns a keyed digest of the client's address, which an invitation keeps until it is redeemed."""
    return services.tokens.keys.newest.derive(_INVITED_AT_PURPOSE, tenant_id, _address_of(scope))


def _address_of(scope: Scope) -> str:
    return counted_as((scope.get("client") or ("", 0))[0])


async def by_code(services: Services, scope: Scope, code: str) -> SignedIn:
    """Signs in with the code of a link that the stack of this machine printed. A code works once.

    Raises: CallerError 401 `code_invalid`.
    """
    tenant_id = sign_in.tenant_of_sign_in_code(code)
    if tenant_id is None or not may_use_codes(services, scope):
        raise _invalid_code()
    async with services.db.transaction(tenant_id) as tx:
        user_id = await sign_in.take_sign_in_code(tx, code)
        if user_id is None:
            raise _invalid_code()
        return await open_session(services, tx, tenant_id, user_id, Credential(SignInMethod.LINK), local=True)


def may_use_codes(services: Services, scope: Scope) -> bool:
    """Returns whether the embedded stack received this request directly from its own machine."""
    caller, headers = scope.get("client") or ("", 0), Headers(scope=scope)
    is_direct = not any(name in headers for name in _PROXY_HEADERS)
    return services.local and is_direct and is_of_this_machine(caller[0], headers.get("host", ""))


def _invalid_code() -> CallerError:
    return CallerError(
        "code_invalid",
        ("This link was already used, has expired, or belongs to another machine; run `perdure link` for a new one"),
        status=401,
    )


async def open_session(
    services: Services, tx: Connection, tenant_id: str, user_id: str, credential: Credential, *, local: bool = False
) -> SignedIn:
    """Begins a session, in the transaction that identified the user by `credential`."""
    lifetime = services.signing_in.session_lasts
    session = await sign_in.begin_session(tx, user_id, lifetime, credential, local=local)
    refresh_token = await sign_in.first_refresh_token(tx, tenant_id, session.id, lifetime)
    return SignedIn(session, tenant_id, refresh_token, credential.how)


def tokens_of(services: Services, signed_in: SignedIn) -> dict[str, object]:
    """Returns the body of a sign-in without a cookie: access token, refresh token and their lifetimes."""
    now, session = datetime.now(UTC), signed_in.session
    expiry = token_expiry(now, services.signing_in.access_lasts, session.expires_at)
    issue = services.tokens.issue
    return {
        "access_token": issue(Audience.HEADER, session.id, signed_in.tenant_id, session.user_id, until=expiry),
        "token_type": "Bearer",
        "expires_in": int((expiry - now).total_seconds()),
        "refresh_token": signed_in.refresh_token,
        "refresh_expires_at": session.expires_at,
    }


def set_session_cookies(services: Services, scope: Scope, response: Response, signed_in: SignedIn) -> None:
    """Sets the session cookie, and after a sign-in with a password also the device cookie."""
    session = signed_in.session
    token = services.tokens.issue(
        Audience.COOKIE, session.id, signed_in.tenant_id, session.user_id, until=session.expires_at
    )
    secure = uses_tls(services, scope)
    credentials.set_cookie(response, credentials.SESSION_COOKIE, token, secure=secure, expires=session.expires_at)
    if signed_in.how in _PASSWORD_METHODS:
        remember_device(services, scope, response, signed_in.tenant_id, session.user_id)


def clear_session_cookie(services: Services, scope: Scope, response: Response) -> None:
    """Deletes the browser's session cookie."""
    credentials.clear_cookie(response, credentials.SESSION_COOKIE, secure=uses_tls(services, scope))


@dataclass(slots=True)
class PasswordAttempt:
    """One attempt at a password, which counts as wrong until it is verified."""

    is_right: bool = False


@asynccontextmanager
async def password_attempt(services: Services, keys: Sequence[Key]) -> AsyncIterator[PasswordAttempt]:
    """Lets one attempt through, unless it is delayed.

    Each wrong password delays further attempts, except on the owner's own devices. A browser that has signed in has a
    signed cookie that names the account and the device. The cookie grants no access. A caller with this cookie is
    delayed only by the wrong attempts of this device.

    Raises: LimitReached `sign_in_delayed`.
    """
    await _admit_attempt(services, keys)
    attempt = PasswordAttempt()
    try:
        yield attempt
    except LimitReached:  # The password was not checked.
        await services.guesses.take_back(keys)
        raise
    if attempt.is_right:
        own_keys = [key for key in keys if key[0] in (DEVICE, PLACE)]
        await services.guesses.forget(own_keys)
        await services.guesses.take_back([key for key in keys if key not in own_keys])


async def _admit_attempt(services: Services, keys: Sequence[Key]) -> None:
    wait = 1.0
    for _ in range(_MAX_COUNT_ATTEMPTS):
        now, tallies = await services.guesses.read(keys)
        wait = wait_left([(limit, tally) for (limit, _), tally in zip(keys, tallies, strict=True)], now)
        if wait > 0:
            break
        if await services.guesses.count(keys, tallies):
            return
    seconds = max(1, ceil(wait))
    raise LimitReached(
        "sign_in_delayed",
        f"Too many failed sign-in attempts; retry in {seconds} s",
        {"retry_after_seconds": seconds},
    )


def guess_keys(services: Services, scope: Scope, tenant_id: str, name: str, user_id: str | None) -> list[Key]:
    """Returns the keys under which an attempt at this account is counted. An unknown name is counted like any other."""
    device = _known_device(services, scope, tenant_id, user_id) if user_id is not None else ""
    if device:
        return [(DEVICE, device)]
    address = _address_of(scope)
    account = f"{tenant_id}/{name}"
    return [(PLACE, f"{account}/{address}"), (ACCOUNT, account), (ADDRESS, address)]


def remember_device(services: Services, scope: Scope, response: Response, tenant_id: str, user_id: str) -> None:
    """Sets the cookie that identifies this browser in later attempts."""
    device = _known_device(services, scope, tenant_id, user_id) or secrets.token_urlsafe(18)
    expires = datetime.now(UTC) + DEVICE_LIFETIME
    until = str(int(expires.timestamp()))
    seal = services.tokens.keys.newest.derive(_DEVICE_SEAL_PURPOSE, tenant_id, user_id, device, until)
    value = f"{device}.{until}.{seal}"
    credentials.set_cookie(
        response,
        _device_cookie(tenant_id, user_id),
        value,
        secure=uses_tls(services, scope),
        expires=expires,
        strict=True,
    )


def _known_device(services: Services, scope: Scope, tenant_id: str, user_id: str) -> str:
    """Returns the device in this browser's cookie. It is empty if the browser has not signed in as this user."""
    header, secure = Headers(scope=scope).get("cookie", ""), uses_tls(services, scope)
    device, _, rest = credentials.read_cookie(header, _device_cookie(tenant_id, user_id), secure=secure).partition(".")
    until, _, seal = rest.partition(".")
    if not services.tokens.keys.verifies(seal, _DEVICE_SEAL_PURPOSE, tenant_id, user_id, device, until):
        return ""
    return device if int(until) > datetime.now(UTC).timestamp() else ""


def _device_cookie(tenant_id: str, user_id: str) -> str:
    """Returns one cookie name for each account, so that users who share a browser each keep their own."""
    return f"{_DEVICE_COOKIE}_{device_mark(tenant_id, user_id)}"
