"""Signing in and out, for programs and for pages. No answer here is kept under an Idempotency-Key: it holds secrets."""

from fastapi import APIRouter, Request
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse

from api import sign_in
from api.auth import Open, Reader
from api.auth_bodies import LoginBody, PasswordBody, ProfileBody, RefreshBody, RegisterBody
from api.csrf import form_token
from api.guessing import guessing
from api.services import Services
from api.sign_in import SignedIn
from contracts.errors import CallerError
from policy.guessing import DEVICE
from policy.refresh import Refresh
from store import passwords, refresh_tokens, registration, sessions, sign_in_codes, users
from store.sessions import Session

router = APIRouter(prefix="/v1/auth", tags=["auth"])
_UNCACHED = {"Cache-Control": "no-store"}


@router.post("/register", status_code=201)
async def register(services: Open, request: Request, body: RegisterBody) -> JSONResponse:
    """Register with a name and a password, and sign in. The first person of a tenant sends the setup code, or the local
    administrator's token, and becomes the administrator; later people send their invitation."""
    signed_in = await sign_in.by_registration(services, body, request.headers.get("authorization", ""))
    async with services.db.transaction(signed_in.tenant_id) as tx:
        user = await users.get(tx, signed_in.session.user_id)
    return _answer(services, request, signed_in, {"user": user}, 201)


@router.post("/login")
async def login(services: Open, request: Request, body: LoginBody) -> JSONResponse:
    """Sign in: tokens for a program, and the session cookie for a browser."""
    if body.token:
        signed_in = await sign_in.by_token(services, body.token)
    else:
        signed_in = await sign_in.by_password(services, request.scope, body.tenant, body.name, body.password)
    async with services.db.transaction(signed_in.tenant_id) as tx:
        user = await users.get(tx, signed_in.session.user_id)
    return _answer(services, request, signed_in, {"user": user}, 200)


@router.get("/ways")
async def ways(services: Open) -> dict[str, bool]:
    """The ways to sign in beside name and password, for a sign-in page. `setup_code`: the first person may register
    with the setup code."""
    is_open, tenant = services.signing_in.open_registration, services.signing_in.tenant
    async with services.db.transaction(tenant) as tx:
        first = await registration.awaits_first(tx, local=services.local)
    return {"oidc": services.oidc is not None, "open_registration": is_open, "setup_code": first}


@router.post("/codes", status_code=201)
async def code(services: Open, who: Reader, request: Request) -> JSONResponse:
    """A code for a link, `/sign-in?code=…`, by which a browser of this machine signs in as the caller: once, within a
    quarter of an hour. Only for the local tokens of the embedded stack, asked for on its own machine. Takes no
    Idempotency-Key: a code is never stored to be shown again."""
    is_token = who.has_local_token and who.session_id is None
    if not is_token or not sign_in.may_use_codes(services, request.scope):
        raise CallerError(
            "codes_are_local", "only the stack of one machine gives codes, to its local tokens", status=403
        )
    async with services.db.transaction(who.tenant_id) as tx:
        made = await sign_in_codes.make(tx, who.tenant_id, who.user_id)
    return JSONResponse(jsonable_encoder(made), 201, _UNCACHED)


@router.post("/refresh")
async def refresh(services: Open, request: Request, body: RefreshBody) -> JSONResponse:
    """A new access token and the refresh token's successor. A token that was used before ends its session."""
    tenant = refresh_tokens.tenant_of(body.refresh_token)
    if tenant is None:
        raise _refused(Refresh.OVER)
    keys, lasts = services.tokens.keys, services.signing_in.session_lasts
    async with services.db.transaction(tenant) as tx:
        found = await refresh_tokens.rotate(tx, tenant, body.refresh_token, keys, lasts)
    if found.expires_at is None:
        raise _refused(found.outcome)
    signed_in = SignedIn(Session(found.session_id, found.user_id, found.expires_at), tenant, found.successor)
    return JSONResponse(jsonable_encoder(sign_in.tokens_of(services, signed_in)), 200, _UNCACHED)


@router.post("/logout")
async def logout(services: Open, who: Reader, request: Request) -> JSONResponse:
    """End this session: its access tokens, refresh tokens and cookie are good for nothing from now on."""
    if who.session_id is None:
        raise CallerError("no_session", "this token is no session; an administrator can take it away", status=409)
    async with services.db.transaction(who.tenant_id) as tx:
        await sessions.end(tx, who.session_id, who.user_id, "signed out")
    answer = JSONResponse({"signed_out": True})
    sign_in.forget(services, request.scope, answer)
    return answer


@router.get("/me")
async def me(services: Open, who: Reader) -> dict[str, object]:
    """Who asks. `form_token` is for the forms of this session's pages."""
    async with services.db.transaction(who.tenant_id) as tx:
        display_name = (await users.get(tx, who.user_id)).display_name
    return {
        "name": who.name,
        "display_name": display_name,
        "tenant": who.tenant_id,
        "user_id": who.user_id,
        "roles": sorted(who.roles),
        "form_token": form_token(services, who.session_id) if who.session_id else None,
    }


@router.patch("/me")
async def change_me(services: Open, who: Reader, body: ProfileBody) -> dict[str, object]:
    """Be called something else. Nobody changes the own roles."""
    async with services.db.transaction(who.tenant_id) as tx:
        await users.set_display_name(tx, who.user_id, body.display_name, who.user_id)
    return await me(services, who)


@router.post("/password")
async def set_password(services: Open, who: Reader, body: PasswordBody) -> dict[str, object]:
    """Set or change the own password; every other session of this person ends."""
    async with services.db.transaction(who.tenant_id) as tx:
        kept = await passwords.of_user(tx, who.user_id)
        display_name = (await users.get(tx, who.user_id)).display_name
    if kept is not None:
        async with guessing(services, [(DEVICE, f"password of {who.tenant_id}/{who.user_id}")]) as guess:
            if not await services.passwords.fits(body.current, kept):
                raise CallerError("password_wrong", "`current` is not your current password", status=403)
            guess.right = True
    await services.passwords.refuse_weak(body.password, who.name, display_name, who.tenant_id)
    hashed = await services.passwords.hashed(body.password)
    async with services.db.transaction(who.tenant_id) as tx:
        await passwords.put(tx, who.user_id, hashed, who.credential)
        ended = await sessions.end_all(tx, who.user_id, who.user_id, "the password was changed", but=who.session_id)
    return {"sessions_ended": ended}


def _answer(
    services: Services, request: Request, signed_in: SignedIn, more: dict[str, object], status: int
) -> JSONResponse:
    body = jsonable_encoder(sign_in.tokens_of(services, signed_in) | more)
    answer = JSONResponse(body, status, _UNCACHED)
    sign_in.remember(services, request.scope, answer, signed_in)
    return answer


def _refused(outcome: Refresh) -> CallerError:
    if outcome is Refresh.BETRAYED:
        return CallerError(
            "refresh_token_reused",
            "this refresh token was used before; its session has ended, sign in again",
            status=401,
        )
    return CallerError("refresh_token_invalid", "this refresh token is not good here, or no longer", status=401)
