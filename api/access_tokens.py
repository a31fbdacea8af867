"""Signed tokens that name a session: for programs in a header, for browsers in a cookie.

A token says who it was made for and nothing of what that person may do: session, person and roles are read anew with
every request. Neither of the two kinds is taken in the place of the other.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OctKey
from joserfc.jws import JWSRegistry
from joserfc.jwt import JWTClaimsRegistry

from policy.access_keys import AccessKeys

ISSUER = "perdure"
TYPE = "at+jwt"
LEEWAY_SECONDS = 30
"""Between the clocks of two servers."""
MOST_CHARACTERS = 4_096


class Audience(StrEnum):
    """Where a token is taken."""

    HEADER = "perdure-api"
    COOKIE = "perdure-browser"


class TokenRefused(Exception):
    """It is none of ours, or no longer good; why is nobody's business but the log's."""


@dataclass(frozen=True, slots=True)
class AccessTokens:
    """Makes and reads them."""

    keys: AccessKeys
    algorithm: str = "HS256"

    def issue(self, audience: Audience, session_id: str, tenant_id: str, user_id: str, *, until: datetime) -> str:
        """A token of this session."""
        key = self.keys.newest
        claims = {
            "iss": ISSUER,
            "aud": audience.value,
            "sub": user_id,
            "tenant": tenant_id,
            "sid": session_id,
            "jti": str(uuid.uuid4()),
            "iat": _stamp(datetime.now(until.tzinfo)),
            "exp": _stamp(until),
        }
        header = {"alg": self.algorithm, "kid": key.id, "typ": TYPE}
        return jwt.encode(header, claims, OctKey.import_key(key.secret), algorithms=[self.algorithm])

    def session_of(self, token: str, audience: Audience, now: datetime) -> str:
        """The session that this token names.

        Raises: TokenRefused.
        """
        if len(token) > MOST_CHARACTERS:
            raise TokenRefused("too long")
        try:
            read = jwt.decode(token, lambda found: self._key(found.headers()), registry=self._registry)
            if read.header.get("typ") != TYPE:
                raise TokenRefused("another kind of token")
            _claims(audience, now).validate(read.claims)
            return str(uuid.UUID(read.claims["sid"]))
        except (JoseError, ValueError, TypeError, AttributeError) as error:
            raise TokenRefused(type(error).__name__) from error

    @property
    def _registry(self) -> JWSRegistry:
        return JWSRegistry(algorithms=[self.algorithm])

    def _key(self, header: Mapping[str, object]) -> OctKey:
        key = self.keys.named(header.get("kid"))
        if key is None:
            raise TokenRefused("signed by a key that is not here")
        return OctKey.import_key(key.secret)


def until(now: datetime, lasts: timedelta, session_ends: datetime) -> datetime:
    """When a token made now ends: never after its session."""
    return min(now + lasts, session_ends)


def _stamp(at: datetime) -> int:
    return int(at.timestamp())


def _claims(audience: Audience, now: datetime) -> JWTClaimsRegistry:
    return JWTClaimsRegistry(
        now=_stamp(now),
        leeway=LEEWAY_SECONDS,
        iss={"essential": True, "value": ISSUER},
        aud={"essential": True, "value": audience.value},
        exp={"essential": True},
        iat={"essential": True},
        sub={"essential": True},
        jti={"essential": True},
        sid={"essential": True},
    )
