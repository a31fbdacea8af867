"""Signed tokens that name a session: for programs in a header, for browsers in a cookie.

A token names its user but no permissions: session, user and roles are read again for every request. A token of one kind
is not accepted in place of the other.
"""

import asyncio
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeVar

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OctKey
from joserfc.jws import JWSRegistry
from joserfc.jwt import JWTClaimsRegistry
from pwdlib.hashers.argon2 import Argon2Hasher
from starlette.responses import Response

from perdure.contracts.errors import CallerError, LimitReached
from perdure.core.identity import AccessKeys
from perdure.core.passwords import own_names, password_weakness

ISSUER = "perdure"
TOKEN_TYPE = "at+jwt"
LEEWAY_SECONDS = 30
"""The tolerated difference between the clocks of two servers."""
MAX_TOKEN_CHARACTERS = 4_096
SESSION_COOKIE = "perdure_session"
_HOST_PREFIX = "__Host-"
"""A prefix that limits the cookie to TLS, to this exact host and to all its paths. A neighboring host cannot set such a
cookie."""
_MAX_COOKIE_CHARACTERS = 16_384
T = TypeVar("T")
HASH_MEMORY_KIB = 19_456
HASH_ROUNDS = 2
HASH_LANES = 1
HASH_THREADS = 2
MAX_RUNNING_HASHES = 64
"""More requests than this would wait for seconds, so they are rejected instead."""
RETRY_AFTER_SECONDS = 2


class Audience(StrEnum):
    """The part of a request in which a token is accepted."""

    HEADER = "perdure-api"
    COOKIE = "perdure-browser"


class TokenRefused(Exception):
    """The token is foreign or no longer valid. Only the log has the reason."""


@dataclass(frozen=True, slots=True)
class AccessTokens:
    """Issues and verifies access tokens."""

    keys: AccessKeys
    algorithm: str = "HS256"

    def issue(self, audience: Audience, session_id: str, tenant_id: str, user_id: str, *, until: datetime) -> str:
        """Returns a signed access token of the session for `audience`, valid until `until`."""
        key = self.keys.newest
        claims = {
            "iss": ISSUER,
            "aud": audience.value,
            "sub": user_id,
            "tenant": tenant_id,
            "sid": session_id,
            "jti": str(uuid.uuid4()),
            "iat": _unix_seconds(datetime.now(until.tzinfo)),
            "exp": _unix_seconds(until),
        }
        header = {"alg": self.algorithm, "kid": key.id, "typ": TOKEN_TYPE}
        return jwt.encode(header, claims, OctKey.import_key(key.secret), algorithms=[self.algorithm])

    def session_of(self, token: str, audience: Audience, now: datetime) -> str:
        """Returns the id of the session that this token names.

        Raises: TokenRefused if the token is invalid or has expired.
        """
        if len(token) > MAX_TOKEN_CHARACTERS:
            raise TokenRefused("longer than a token can be")
        try:
            decoded = jwt.decode(token, lambda found: self._key(found.headers()), registry=self._registry)
            if decoded.header.get("typ") != TOKEN_TYPE:
                raise TokenRefused("not an access token")
            _claims_registry(audience, now).validate(decoded.claims)
            return str(uuid.UUID(decoded.claims["sid"]))
        except (JoseError, ValueError, TypeError, AttributeError) as error:
            raise TokenRefused(type(error).__name__) from error

    @property
    def _registry(self) -> JWSRegistry:
        return JWSRegistry(algorithms=[self.algorithm])

    def _key(self, header: Mapping[str, object]) -> OctKey:
        key = self.keys.find_key(header.get("kid"))
        if key is None:
            raise TokenRefused("signed with an unknown key")
        return OctKey.import_key(key.secret)


def token_expiry(now: datetime, lifetime: timedelta, session_expiry: datetime) -> datetime:
    """Returns when a token that is issued now expires: never after its session."""
    return min(now + lifetime, session_expiry)


def _unix_seconds(at: datetime) -> int:
    return int(at.timestamp())


def _claims_registry(audience: Audience, now: datetime) -> JWTClaimsRegistry:
    return JWTClaimsRegistry(
        now=_unix_seconds(now),
        leeway=LEEWAY_SECONDS,
        iss={"essential": True, "value": ISSUER},
        aud={"essential": True, "value": audience.value},
        exp={"essential": True},
        iat={"essential": True},
        sub={"essential": True},
        jti={"essential": True},
        sid={"essential": True},
    )


def cookie_name(cookie: str, *, secure: bool) -> str:
    """Returns the cookie's name as browsers know it: over TLS with the prefix that binds it to this host."""
    return f"{_HOST_PREFIX}{cookie}" if secure else cookie


def read_cookie(header: str, cookie: str, *, secure: bool) -> str:
    """Returns the value of this cookie in a Cookie header. It is empty if there is none, or if several differ."""
    if len(header) > _MAX_COOKIE_CHARACTERS:
        return ""
    name = cookie_name(cookie, secure=secure)
    pairs = (part.partition("=") for part in header.split(";"))
    values = {value.strip() for key, _, value in pairs if key.strip() == name}
    return values.pop() if len(values) == 1 else ""


def cookies_after(header: str, prefix: str, *, secure: bool) -> list[str]:
    """Returns the rest of the name of each cookie in a Cookie header whose name begins with `prefix`."""
    if len(header) > _MAX_COOKIE_CHARACTERS:
        return []
    beginning = cookie_name(prefix, secure=secure)
    names = (part.partition("=")[0].strip() for part in header.split(";"))
    return [name.removeprefix(beginning) for name in names if name.startswith(beginning)]


def set_cookie(
    response: Response, cookie: str, value: str, *, secure: bool, expires: datetime, strict: bool = False
) -> None:
    """Sets the cookie. Lax: the browser sends it when the user follows a link from another site, but not with a form
    from another site. `strict`: the browser never sends it with requests from another site. It is out of reach of
    scripts, sent to this host only, and over TLS if the server uses TLS."""
    response.set_cookie(
        cookie_name(cookie, secure=secure),
        value,
        expires=expires,
        path="/",
        secure=secure,
        httponly=True,
        samesite="strict" if strict else "lax",
    )


def clear_cookie(response: Response, cookie: str, *, secure: bool) -> None:
    """Makes the browser delete the cookie, with the same attributes as it was set."""
    response.delete_cookie(cookie_name(cookie, secure=secure), path="/", secure=secure, httponly=True, samesite="lax")


def clear_cookie_header(cookie: str, *, secure: bool) -> tuple[bytes, bytes]:
    """Returns the header that deletes the cookie, for a response that is not a `Response`."""
    carrier = Response()
    clear_cookie(carrier, cookie, secure=secure)
    return b"set-cookie", carrier.headers["set-cookie"].encode("latin-1")


class Passwords:
    """Hashes and verifies passwords in its own threads. Two run at a time. By design, argon2id takes 19 MiB and 18 ms
    of a core (measured)."""

    def __init__(self) -> None:
        self._hasher = Argon2Hasher(time_cost=HASH_ROUNDS, memory_cost=HASH_MEMORY_KIB, parallelism=HASH_LANES)
        self._pool = ThreadPoolExecutor(HASH_THREADS, "passwords")
        self._running_hashes = 0
        self._decoy = self._hasher.hash("no user has this password")

    async def hash_password(self, password: str) -> str:
        """Returns the hash to store.

        Raises: LimitReached `sign_in_busy`.
        """
        return await self._run_in_pool(lambda: self._hasher.hash(password))

    async def refuse_weak(self, password: str, *names: str) -> None:
        """Raises: CallerError 422 `password_weak` for a common password, or for one that is one of these names;
        LimitReached `sign_in_busy`."""
        weakness = await self._run_in_pool(lambda: password_weakness(password, own_names(*names)))
        if weakness is not None:
            raise CallerError("password_weak", weakness, {"field": "password"}, status=422)

    async def is_correct(self, password: str, stored_hash: str | None) -> bool:
        """Returns whether the password matches the hash. Without a hash, the check takes as long and returns False.

        Raises: LimitReached `sign_in_busy`.
        """
        matches = await self._run_in_pool(lambda: self._hasher.verify(password, stored_hash or self._decoy))
        return bool(matches) and stored_hash is not None

    async def _run_in_pool(self, work: Callable[[], T]) -> T:
        if self._running_hashes >= MAX_RUNNING_HASHES:
            raise LimitReached(
                "sign_in_busy",
                "Too many people are signing in; retry in a few seconds",
                {"retry_after_seconds": RETRY_AFTER_SECONDS},
            )
        self._running_hashes += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._running_hashes -= 1

    def close(self) -> None:
        """Stops the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
