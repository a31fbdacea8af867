"""Sign-in at an identity provider: OpenID Connect, code flow with PKCE. Authlib, an optional dependency, implements
OAuth.

Requests to the provider have three purposes: its metadata, tokens for a code, and its keys. Each address is one that
the provider names over TLS. These requests obey the rules of perdure/egress/, with the issuer's host as one that the
operator named. The provider's claims about a user are accepted only if it signed them for this client and this sign-in.
"""

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import structlog
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from joserfc.jwt import JWTClaimsRegistry

from perdure.contracts.errors import CallerError, UpstreamUnavailable
from perdure.core.egress import Outbound, named_by_url, target_of
from perdure.egress import Call, calling

if TYPE_CHECKING:
    from authlib.integrations.httpx_client import AsyncOAuth2Client

_log = structlog.get_logger(__name__)
ALGORITHMS = ("RS256", "ES256", "PS256", "Ed25519", "EdDSA")
"""Algorithms that sign with a key pair. Signatures with the client's secret are not accepted."""
SCOPE = "openid profile email"
_TIMEOUT_SECONDS = 10.0
"""The limit for all requests of one sign-in together, and for each read."""
_MAX_ANSWER_BYTES = 1_048_576
"""The limit for each response of the provider."""
_LEEWAY_SECONDS = 30
_METADATA_SECONDS = 3_600.0
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")


@dataclass(frozen=True, slots=True)
class OidcConfig:
    """The operator's settings for the provider."""

    issuer: str
    client_id: str
    client_secret: str
    newcomers: tuple[str, ...]
    """The roles of users who sign in for the first time. If empty, only known users can sign in."""
    outbound: Outbound = field(default_factory=Outbound)


@dataclass(frozen=True, slots=True)
class StartedSignIn:
    """A started sign-in: the address for the browser, and the values to check when it returns."""

    url: str
    state: str
    nonce: str
    verifier: str


class Provider:
    """One provider, identified by its issuer."""

    def __init__(self, config: OidcConfig) -> None:
        self.config = config
        self._metadata: dict[str, str] = {}
        self._keys: KeySet | None = None
        self._read_at = 0.0

    async def begin(self, redirect_uri: str) -> StartedSignIn:
        """Returns the provider's address for the browser, and the values to check afterwards.

        Raises: UpstreamUnavailable `oidc_unavailable`.
        """
        verifier, nonce = secrets.token_urlsafe(48), secrets.token_urlsafe(24)
        async with self._timed_client(redirect_uri) as client:
            endpoints = await self._endpoints(client)
            url, state = client.create_authorization_url(
                endpoints["authorization_endpoint"], code_verifier=verifier, nonce=nonce
            )
        return StartedSignIn(url, state, nonce, verifier)

    async def claims(self, code: str, nonce: str, verifier: str, redirect_uri: str) -> dict[str, Any]:
        """Returns the provider's claims about the user, for the code that the browser returned with.

        Raises: CallerError 401 `oidc_refused`; UpstreamUnavailable `oidc_unavailable`.
        """
        from authlib.integrations.base_client import OAuthError

        async with self._timed_client(redirect_uri) as client:
            endpoints = await self._endpoints(client)
            try:
                token = await client.fetch_token(
                    endpoints["token_endpoint"], grant_type="authorization_code", code=code, code_verifier=verifier
                )
            except OAuthError as error:
                raise _refusal("The provider rejected the authorization code; sign in again") from error
            except Exception as error:  # as in _read_json
                raise _provider_unavailable(error) from error
            return await self._verified_claims(client, str(token.get("id_token", "")), nonce)

    async def _verified_claims(self, client: "AsyncOAuth2Client", id_token: str, nonce: str) -> dict[str, Any]:
        keys = await self._signing_keys(client)
        try:
            try:
                token = jwt.decode(id_token, keys, algorithms=ALGORITHMS)
            except JoseError:
                keys = await self._signing_keys(client, refresh=True)  # The provider may have changed its keys since.
                token = jwt.decode(id_token, keys, algorithms=ALGORITHMS)
            self._claims_registry(nonce).validate(token.claims)
        except (JoseError, ValueError, TypeError) as error:
            raise _refusal("The provider's ID token is invalid; sign in again") from error
        audience, authorized_party = token.claims["aud"], token.claims.get("azp")
        if isinstance(audience, list) and len(audience) > 1 and authorized_party != self.config.client_id:
            raise _refusal("The provider's ID token is for another audience")
        return dict(token.claims)

    def _claims_registry(self, nonce: str) -> JWTClaimsRegistry:
        return JWTClaimsRegistry(
            now=int(time.time()),
            leeway=_LEEWAY_SECONDS,
            iss={"essential": True, "value": self.config.issuer},
            aud={"essential": True, "value": self.config.client_id},
            sub={"essential": True},
            exp={"essential": True},
            iat={"essential": True},
            nonce={"essential": True, "value": nonce},
        )

    async def _endpoints(self, client: "AsyncOAuth2Client") -> dict[str, str]:
        if not self._metadata or time.monotonic() - self._read_at > _METADATA_SECONDS:
            document = await self._read_json(
                client, f"{self.config.issuer.rstrip('/')}/.well-known/openid-configuration"
            )
            if document.get("issuer") != self.config.issuer or not all(
                isinstance(document.get(endpoint), str) for endpoint in _ENDPOINTS
            ):
                raise UpstreamUnavailable(
                    "oidc_unavailable", "The provider's metadata names another issuer; check PERDURE_OIDC_ISSUER"
                )
            self._metadata = {endpoint: document[endpoint] for endpoint in _ENDPOINTS}
            self._keys, self._read_at = None, time.monotonic()
            for address in self._metadata.values():
                target_of(address)
        return self._metadata

    async def _signing_keys(self, client: "AsyncOAuth2Client", *, refresh: bool = False) -> KeySet:
        if self._keys is None or refresh:
            key_set = await self._read_json(client, (await self._endpoints(client))["jwks_uri"])
            try:
                self._keys = KeySet.import_key_set(key_set)  # type: ignore[arg-type]
            except (JoseError, KeyError, ValueError, TypeError) as error:
                raise _provider_unavailable(error) from error
        return self._keys

    async def _read_json(self, client: "AsyncOAuth2Client", url: str) -> dict[str, Any]:
        target_of(url)
        try:
            answer = await client.request("GET", url, withhold_token=True)
            body = answer.json() if answer.status_code == 200 else None
        except Exception as error:  # A fault of the provider must never let a user in.
            raise _provider_unavailable(error) from error
        if not isinstance(body, dict):
            raise _provider_unavailable()
        return body

    @asynccontextmanager
    async def _timed_client(self, redirect_uri: str) -> AsyncIterator["AsyncOAuth2Client"]:
        """Yields a client whose requests must end within the time of one sign-in."""
        with calling(Call(deadline=time.monotonic() + _TIMEOUT_SECONDS)):
            async with self._oauth_client(redirect_uri) as client:
                yield client

    def _oauth_client(self, redirect_uri: str) -> "AsyncOAuth2Client":
        # Imported here: it takes 0.3 s, and most deployments have no provider.
        from authlib.integrations.httpx_client import AsyncOAuth2Client

        from perdure.egress.httpx2_transport import Transport2

        secret = self.config.client_secret
        issuer_host = named_by_url(self.config.issuer, by_operator=True)
        return AsyncOAuth2Client(
            self.config.client_id,
            secret or None,
            token_endpoint_auth_method="client_secret_basic" if secret else "none",
            scope=SCOPE,
            redirect_uri=redirect_uri,
            code_challenge_method="S256",
            timeout=_TIMEOUT_SECONDS,
            follow_redirects=False,
            trust_env=False,
            transport=Transport2(replace(self.config.outbound, answer_bytes=_MAX_ANSWER_BYTES).with_hosts(issuer_host)),
        )


def _refusal(message: str) -> CallerError:
    return CallerError("oidc_refused", message, status=401)


def _provider_unavailable(error: Exception | None = None) -> UpstreamUnavailable:
    _log.warning("oidc_provider_failed", error=type(error).__name__ if error else "")
    return UpstreamUnavailable(
        "oidc_unavailable", "The identity provider is unreachable or returned an invalid response; retry later"
    )
