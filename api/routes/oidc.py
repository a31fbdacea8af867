"""The two steps of a browser that signs in at a provider elsewhere."""

import base64
import binascii
import hmac
import json
import time
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse

from api import cookies, sign_in
from api.auth import SIGN_IN, Open, Visitor, is_secure
from api.oidc import Provider
from api.services import Services
from contracts.errors import CallerError, PerdureError
from policy.credentials import OWN
from policy.same_site import is_foreign, local_path
from store import identities

router = APIRouter(prefix="/v1/auth/oidc", tags=["auth"], include_in_schema=False)
COOKIE = "perdure_oidc"
"""Holds what must come back, signed by us; Lax, so that it comes along from the provider's page."""
HOME = "/review"
_PURPOSE = "oidc sign-in"
_LASTS_SECONDS = 600
_SEE_OTHER = 303


@router.get("/start")
async def start(
    services: Open, request: Request, who: Visitor, next: Annotated[str, Query(max_length=500)] = "", link: bool = False
) -> RedirectResponse:
    """Go to the provider. `link`: whoever is signed in gets this way in beside the others, where a page of ours, or the
    person, asks for it: another site could have signed its own user in at the provider before."""
    provider = _provider(services)
    try:
        if link and is_foreign(request.url.netloc, "", request.headers.get("sec-fetch-site", "")):
            raise CallerError("foreign_origin", "a page of another site asked for this", status=403)
        begun = await provider.begin(_redirect_uri(services, request))
    except PerdureError as error:
        return _back(error)
    kept = {
        "state": begun.state,
        "nonce": begun.nonce,
        "verifier": begun.verifier,
        "next": local_path(next, HOME),
        "link": who.user_id if link and who is not None else None,
        "until": int(time.time()) + _LASTS_SECONDS,
    }
    answer = RedirectResponse(begun.url, _SEE_OTHER)
    secure = is_secure(services, request.scope)
    answer.set_cookie(
        cookies.name_of(COOKIE, secure=secure),
        _sealed(services, kept),
        max_age=_LASTS_SECONDS,
        path="/",
        secure=secure,
        httponly=True,
        samesite="lax",
    )
    return answer


@router.get("/callback")
async def callback(
    services: Open,
    request: Request,
    who: Visitor,
    code: Annotated[str, Query(max_length=4_000)] = "",
    state: Annotated[str, Query(max_length=500)] = "",
) -> RedirectResponse:
    """Back from the provider, with a code or with its refusal."""
    provider = _provider(services)
    secure = is_secure(services, request.scope)
    sealed = cookies.read(request.headers.get("cookie", ""), COOKIE, secure=secure)
    try:
        kept = _opened(services, sealed, state)
        if not code:
            raise CallerError("oidc_refused", "the provider did not let you in", status=401)
        claims = await provider.claims(
            code, str(kept["nonce"]), str(kept["verifier"]), _redirect_uri(services, request)
        )
        link = kept["link"]
        if link is not None and (who is None or who.user_id != link):
            raise CallerError("session_over", "sign in again before you link", status=401)
        tenant, config = services.signing_in.tenant, provider.config
        async with services.db.transaction(tenant) as tx:
            linked_by = OWN if link is None or who is None else who.credential
            user_id, credential = await identities.enter(
                tx, config.issuer, claims, config.newcomers, str(link) if link is not None else None, linked_by
            )
            signed_in = await sign_in.begin(services, tx, tenant, user_id, credential)
    except PerdureError as error:
        answer = _back(error)
    else:
        answer = RedirectResponse(str(kept["next"]), _SEE_OTHER)
        sign_in.remember(services, request.scope, answer, signed_in)
    cookies.clear(answer, COOKIE, secure=secure)
    return answer


def _provider(services: Services) -> Provider:
    if services.oidc is None:
        raise CallerError("oidc_not_set_up", "no provider is set up; see PERDURE_OIDC_ISSUER", status=404)
    return services.oidc


def _redirect_uri(services: Services, request: Request) -> str:
    base = services.signing_in.public_url or f"{request.url.scheme}://{request.url.netloc}"
    return f"{base}/v1/auth/oidc/callback"


def _back(error: PerdureError) -> RedirectResponse:
    return RedirectResponse(f"{SIGN_IN}?{urlencode({'failed': error.code})}", _SEE_OTHER)


def _sealed(services: Services, kept: Mapping[str, object]) -> str:
    text = base64.urlsafe_b64encode(json.dumps(kept).encode()).rstrip(b"=").decode()
    return f"{text}.{services.tokens.keys.newest.derived(_PURPOSE, text)}"


def _opened(services: Services, sealed: str, state: str) -> dict[str, object]:
    """Raises: CallerError 401 `oidc_refused` where this browser did not begin this sign-in, or too long ago."""
    text, _, seal = sealed.partition(".")
    if services.tokens.keys.knows(seal, _PURPOSE, text):
        try:
            kept: dict[str, object] = json.loads(base64.urlsafe_b64decode(text + "==="))
        except (binascii.Error, ValueError):
            kept = {}
        fits = hmac.compare_digest(str(kept.get("state", "")).encode(), state.encode())
        if fits and state and float(str(kept.get("until", 0))) > time.time():
            return kept
    raise CallerError("oidc_refused", "this sign-in was not begun here, or too long ago", status=401)
