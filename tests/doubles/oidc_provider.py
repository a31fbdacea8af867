"""An OpenID Connect provider on its own port that checks PKCE, the client's secret, the redirect address and codes. It
signs the given user in without a page."""

import base64
import hashlib
import secrets
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from joserfc import jwt
from joserfc.jwk import RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from tests.doubles.local_server import LocalServer

CLIENT_ID, CLIENT_SECRET = "perdure-here", "a secret of the client"


@dataclass(slots=True)
class OidcProvider:
    issuer: str = ""
    person: dict[str, Any] = field(default_factory=dict)
    """The claims of the user at the browser; empty: the sign-in is refused."""
    bent: dict[str, Any] = field(default_factory=dict)
    """Claims that it gets wrong on purpose."""
    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "1"}))
    signs_with: RSAKey | None = None
    """Another key than it shows."""
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    redirect_uris: set[str] = field(default_factory=set)
    _listening: LocalServer | None = None

    async def start(self) -> "OidcProvider":
        app = Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._discovery),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
                Route("/keys", self._keys),
            ]
        )
        self._listening = LocalServer(app, lifespan="off")
        self.issuer = self._listening.url
        await self._listening.start()
        return self

    async def stop(self) -> None:
        assert self._listening is not None
        await self._listening.stop()

    async def _discovery(self, _: Request) -> Response:
        paths = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
        return JSONResponse({"issuer": self.issuer, **{key: f"{self.issuer}/{path}" for key, path in paths.items()}})

    async def _authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        if asked.get("client_id") != CLIENT_ID or asked.get("redirect_uri") not in self.redirect_uris:
            return Response("who are you?", 400)
        if asked.get("response_type") != "code" or asked.get("code_challenge_method") != "S256":
            return Response("not like this", 400)
        if not self.person:
            said = urlencode({"error": "access_denied", "state": asked["state"]})
            return RedirectResponse(f"{asked['redirect_uri']}?{said}")
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}")

    async def _token(self, request: Request) -> Response:
        form = await request.form()
        given = base64.b64decode(request.headers.get("authorization", "").partition(" ")[2]).decode()
        asked = self.codes.pop(str(form.get("code")), None)
        challenge = hashlib.sha256(str(form.get("code_verifier")).encode()).digest()
        if given != f"{CLIENT_ID}:{CLIENT_SECRET}":
            return JSONResponse({"error": "invalid_client"}, 401)
        if (
            asked is None
            or form.get("redirect_uri") != asked["redirect_uri"]
            or base64.urlsafe_b64encode(challenge).rstrip(b"=").decode() != asked["code_challenge"]
        ):
            return JSONResponse({"error": "invalid_grant"}, 400)
        now = int(time.time())
        standard = {"iss": self.issuer, "aud": CLIENT_ID, "iat": now, "exp": now + 300, "nonce": asked["nonce"]}
        claims = {each: value for each, value in {**standard, **self.person, **self.bent}.items() if value is not None}
        key = self.signs_with or self.key
        header = {"alg": "RS256", "kid": self.key.kid}
        return JSONResponse({"access_token": "x", "token_type": "Bearer", "id_token": jwt.encode(header, claims, key)})

    async def _keys(self, _: Request) -> Response:
        return JSONResponse({"keys": [self.key.as_dict(private=False)]})
