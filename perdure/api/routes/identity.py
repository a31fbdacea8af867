"""Signing in and out, for programs and pages. Responses here are not stored under an idempotency key, because they
contain secrets."""

import base64
import binascii
import hmac
import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Path, Query, Request
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse, RedirectResponse
from pydantic import ValidationError

from perdure.api import credentials, sign_in
from perdure.api.auth import SIGN_IN, Caller, Principal, ServicesDep, Visitor, uses_tls
from perdure.api.idempotency import Key, run_once
from perdure.api.middleware import form_token
from perdure.api.oidc import Provider
from perdure.api.request_bodies import (
    Cursor,
    InviteBody,
    Limit,
    LoginBody,
    MemberBody,
    NewUser,
    PasswordBody,
    ProfileBody,
    RefreshBody,
    RegisterBody,
    RolesBody,
    TokenBody,
)
from perdure.api.services import Services
from perdure.api.sign_in import SignedIn, password_attempt
from perdure.contracts.errors import CallerError, LimitReached, PerdureError
from perdure.core.identity import MAX_SUBJECT_CHARACTERS, OWN_CREDENTIAL, CodeEnd, RefreshOutcome
from perdure.core.passwords import DEVICE
from perdure.core.request_origin import is_foreign, local_path
from perdure.store.database import Connection
from perdure.store.delivery.outbox import Note
from perdure.store.identity import erasure, registration, subjects, users
from perdure.store.identity import sign_in as sign_in_store
from perdure.store.identity.registration import Invitation
from perdure.store.identity.sign_in import Session
from perdure.temporal.workflow_client import delete_histories

auth_router = APIRouter(prefix="/v1/auth", tags=["auth"])
_UNCACHED = {"Cache-Control": "no-store"}
STATE_COOKIE = "perdure_oidc"
"""Holds the signed values that the callback checks. Lax, so that the browser sends it with the redirect from the
provider."""
HOME_PATH = "/review"
_STATE_SEAL_PURPOSE = "oidc sign-in"
_STATE_SECONDS = 600
_SEE_OTHER = 303


@auth_router.post("/register", status_code=201)
async def register(services: ServicesDep, request: Request, body: RegisterBody) -> JSONResponse:
    """Registers a user with a name and a password, and signs in. The first user of a tenant sends the setup code or the
    local administrator's token and becomes the administrator. Later users send an invitation. After ten wrong
    setup codes, an address gets 429 `too_many_tries` for the time in `Retry-After`."""
    signed_in = await sign_in.by_registration(services, request.scope, body)
    async with services.db.transaction(signed_in.tenant_id) as tx:
        user = await users.get_user(tx, signed_in.session.user_id)
    return _sign_in_response(services, request, signed_in, {"user": user}, 201)


@auth_router.post("/login")
async def login(services: ServicesDep, request: Request, body: LoginBody) -> JSONResponse:
    """Signs in. Returns tokens for programs and sets the session cookie for browsers."""
    if body.token:
        signed_in = await sign_in.by_token(services, body.token)
    else:
        signed_in = await sign_in.by_password(services, request.scope, body.tenant, body.name, body.password)
    async with services.db.transaction(signed_in.tenant_id) as tx:
        user = await users.get_user(tx, signed_in.session.user_id)
    return _sign_in_response(services, request, signed_in, {"user": user}, 200)


@auth_router.get("/ways")
async def ways(services: ServicesDep) -> dict[str, object]:
    """Lists the sign-in methods besides name and password. `setup_code` is true if the first user can register with the
    setup code. `setup_code_ended` states why it cannot be used: `reason` is `used`, `administrator_exists`, `expired`
    or `missing`. It is null if the code is valid, or has ended more than a day ago because there is an
    administrator."""
    is_open, tenant = services.signing_in.open_registration, services.signing_in.tenant
    async with services.db.transaction(tenant) as tx:
        state = await registration.code_state(tx, local=services.local)
    if not state.is_valid and state.end not in (CodeEnd.MISSING, CodeEnd.EXPIRED):
        sign_in.remove_setup_code_file(services)  # an administrator can also come from the identity provider
    ended = {"reason": state.end.value, "at": state.ended_at} if state.end else None
    return {
        "oidc": services.oidc is not None,
        "open_registration": is_open,
        "setup_code": state.is_valid,
        "setup_code_ended": ended,
    }


@auth_router.post("/codes", status_code=201)
async def code(services: ServicesDep, caller: Caller, request: Request) -> JSONResponse:
    """Returns a code for a sign-in link (`/sign-in?code=…`). A browser on this machine can use it once, within 15
    minutes, to sign in as the caller. Only local tokens of the embedded stack can request it, and only on the same
    machine. Ignores Idempotency-Key, because codes are not stored in readable form."""
    is_token = caller.has_local_token and caller.session_id is None
    if not is_token or not sign_in.may_use_codes(services, request.scope):
        raise CallerError(
            "codes_are_local", "Only local tokens of an embedded stack can create sign-in codes", status=403
        )
    async with services.db.transaction(caller.tenant_id) as tx:
        sign_in_code = await sign_in_store.make_sign_in_code(tx, caller.tenant_id, caller.user_id)
    return JSONResponse(jsonable_encoder(sign_in_code), 201, _UNCACHED)


@auth_router.post("/refresh")
async def refresh(services: ServicesDep, request: Request, body: RefreshBody) -> JSONResponse:
    """Exchanges a refresh token for a new access token and a new refresh token. Reusing an old refresh token ends the
    session."""
    tenant = sign_in_store.tenant_of_refresh_token(body.refresh_token)
    if tenant is None:
        raise _refresh_error(RefreshOutcome.OVER)
    keys, lifetime = services.tokens.keys, services.signing_in.session_lasts
    async with services.db.transaction(tenant) as tx:
        rotation = await sign_in_store.rotate_refresh_token(tx, tenant, body.refresh_token, keys, lifetime)
    if rotation.expires_at is None:
        raise _refresh_error(rotation.outcome)
    signed_in = SignedIn(
        Session(rotation.session_id, rotation.user_id, rotation.expires_at), tenant, rotation.successor
    )
    return JSONResponse(jsonable_encoder(sign_in.tokens_of(services, signed_in)), 200, _UNCACHED)


@auth_router.post("/logout")
async def logout(services: ServicesDep, caller: Caller, request: Request) -> JSONResponse:
    """Signs out: ends the session and invalidates its access tokens, refresh tokens and cookie."""
    if caller.session_id is None:
        raise CallerError(
            "no_session", "This token has no session to sign out of; an administrator can close the account", status=409
        )
    async with services.db.transaction(caller.tenant_id) as tx:
        await sign_in_store.end_session(tx, caller.session_id, caller.user_id, "signed out")
    answer = JSONResponse({"signed_out": True})
    sign_in.clear_session_cookie(services, request.scope, answer)
    return answer


@auth_router.get("/me")
async def me(services: ServicesDep, caller: Caller) -> dict[str, object]:
    """Returns the signed-in user. `form_token` is the CSRF token for the forms of this session."""
    async with services.db.transaction(caller.tenant_id) as tx:
        display_name = (await users.get_user(tx, caller.user_id)).display_name
    return {
        "name": caller.name,
        "display_name": display_name,
        "tenant": caller.tenant_id,
        "user_id": caller.user_id,
        "roles": sorted(caller.roles),
        "form_token": form_token(services, caller.session_id) if caller.session_id else None,
    }


@auth_router.patch("/me")
async def change_me(services: ServicesDep, caller: Caller, body: ProfileBody) -> dict[str, object]:
    """Changes your display name. You cannot change your own roles."""
    async with services.db.transaction(caller.tenant_id) as tx:
        await users.set_display_name(tx, caller.user_id, body.display_name, caller.user_id)
    return await me(services, caller)


@auth_router.post("/password")
async def set_password(services: ServicesDep, caller: Caller, body: PasswordBody) -> dict[str, object]:
    """Sets or changes your password and ends all your other sessions."""
    async with services.db.transaction(caller.tenant_id) as tx:
        stored_hash = await sign_in_store.password_of_user(tx, caller.user_id)
        display_name = (await users.get_user(tx, caller.user_id)).display_name
    if stored_hash is not None:
        async with password_attempt(
            services, [(DEVICE, f"password of {caller.tenant_id}/{caller.user_id}")]
        ) as attempt:
            if not await services.passwords.is_correct(body.current, stored_hash):
                raise CallerError("password_wrong", "`current` is not your current password", status=403)
            attempt.is_right = True
    await services.passwords.refuse_weak(body.password, caller.name, display_name, caller.tenant_id)
    hashed = await services.passwords.hash_password(body.password)
    async with services.db.transaction(caller.tenant_id) as tx:
        await sign_in_store.set_password(tx, caller.user_id, hashed, caller.credential)
        ended = await sign_in_store.end_all_sessions(
            tx, caller.user_id, caller.user_id, "password changed", except_session_id=caller.session_id
        )
    return {"sessions_ended": ended}


def _sign_in_response(
    services: Services, request: Request, signed_in: SignedIn, extra_fields: dict[str, object], status: int
) -> JSONResponse:
    body = jsonable_encoder(sign_in.tokens_of(services, signed_in) | extra_fields)
    answer = JSONResponse(body, status, _UNCACHED)
    sign_in.set_session_cookies(services, request.scope, answer, signed_in)
    return answer


def _refresh_error(outcome: RefreshOutcome) -> CallerError:
    if outcome is RefreshOutcome.REUSED:
        return CallerError(
            "refresh_token_reused",
            "This refresh token was already used, so its session has ended; sign in again",
            status=401,
        )
    return CallerError(
        "refresh_token_invalid", "This refresh token is invalid or has expired; sign in again", status=401
    )


oidc_router = APIRouter(prefix="/v1/auth/oidc", tags=["auth"], include_in_schema=False)


@oidc_router.get("/start")
async def start(
    services: ServicesDep,
    request: Request,
    caller: Visitor,
    next: Annotated[str, Query(max_length=500)] = "",
    link: bool = False,
) -> RedirectResponse:
    """Redirects to the identity provider. With `link`, adds the provider as a sign-in method for the signed-in user.
    Only a page of this server, or the user directly, can request a link, so that another site cannot link its own
    account."""
    provider = _configured_provider(services)
    try:
        if link and is_foreign(request.url.netloc, "", request.headers.get("sec-fetch-site", "")):
            raise CallerError("foreign_origin", "The request came from a page of another site", status=403)
        started = await provider.begin(_redirect_uri(services, request))
    except PerdureError as error:
        return _redirect_with_error(error)
    state_values = {
        "state": started.state,
        "nonce": started.nonce,
        "verifier": started.verifier,
        "next": local_path(next, HOME_PATH),
        "link": caller.user_id if link and caller is not None else None,
        "until": int(time.time()) + _STATE_SECONDS,
    }
    answer = RedirectResponse(started.url, _SEE_OTHER)
    secure = uses_tls(services, request.scope)
    answer.set_cookie(
        credentials.cookie_name(STATE_COOKIE, secure=secure),
        _seal_state(services, state_values),
        max_age=_STATE_SECONDS,
        path="/",
        secure=secure,
        httponly=True,
        samesite="lax",
    )
    return answer


@oidc_router.get("/callback")
async def callback(
    services: ServicesDep,
    request: Request,
    caller: Visitor,
    code: Annotated[str, Query(max_length=4_000)] = "",
    state: Annotated[str, Query(max_length=500)] = "",
) -> RedirectResponse:
    """Receives the provider's redirect, with a code or an error."""
    provider = _configured_provider(services)
    secure = uses_tls(services, request.scope)
    sealed = credentials.read_cookie(request.headers.get("cookie", ""), STATE_COOKIE, secure=secure)
    try:
        state_values = _open_state(services, sealed, state)
        if not code:
            raise CallerError("oidc_refused", "The identity provider denied the sign-in", status=401)
        claims = await provider.claims(
            code, str(state_values["nonce"]), str(state_values["verifier"]), _redirect_uri(services, request)
        )
        link = state_values["link"]
        if link is not None and (caller is None or caller.user_id != link):
            raise CallerError("session_over", "Sign in again before you link an account", status=401)
        tenant, config = services.signing_in.tenant, provider.config
        async with services.db.transaction(tenant) as tx:
            linked_by = OWN_CREDENTIAL if link is None or caller is None else caller.credential
            user_id, credential = await users.enter_by_identity(
                tx, config.issuer, claims, config.newcomers, str(link) if link is not None else None, linked_by
            )
            signed_in = await sign_in.open_session(services, tx, tenant, user_id, credential)
    except PerdureError as error:
        answer = _redirect_with_error(error)
    else:
        answer = RedirectResponse(str(state_values["next"]), _SEE_OTHER)
        sign_in.set_session_cookies(services, request.scope, answer, signed_in)
    credentials.clear_cookie(answer, STATE_COOKIE, secure=secure)
    return answer


def _configured_provider(services: Services) -> Provider:
    if services.oidc is None:
        raise CallerError("oidc_not_set_up", "No identity provider is configured; set PERDURE_OIDC_ISSUER", status=404)
    return services.oidc


def _redirect_uri(services: Services, request: Request) -> str:
    base = services.signing_in.public_url or f"{request.url.scheme}://{request.url.netloc}"
    return f"{base}/v1/auth/oidc/callback"


def _redirect_with_error(error: PerdureError) -> RedirectResponse:
    return RedirectResponse(f"{SIGN_IN}?{urlencode({'failed': error.code})}", _SEE_OTHER)


def _seal_state(services: Services, values: Mapping[str, object]) -> str:
    text = base64.urlsafe_b64encode(json.dumps(values).encode()).rstrip(b"=").decode()
    return f"{text}.{services.tokens.keys.newest.derive(_STATE_SEAL_PURPOSE, text)}"


def _open_state(services: Services, sealed: str, state: str) -> dict[str, object]:
    """Raises: CallerError 401 `oidc_refused` if this browser did not start the sign-in, or if it has expired."""
    text, _, seal = sealed.partition(".")
    if services.tokens.keys.verifies(seal, _STATE_SEAL_PURPOSE, text):
        try:
            values: dict[str, object] = json.loads(base64.urlsafe_b64decode(text + "==="))
        except (binascii.Error, ValueError):
            values = {}
        matches = hmac.compare_digest(str(values.get("state", "")).encode(), state.encode())
        if matches and state and float(str(values.get("until", 0))) > time.time():
            return values
    raise CallerError(
        "oidc_refused", "The sign-in was started in another browser, or has expired; start again", status=401
    )


sign_in_router = APIRouter(tags=["auth"], include_in_schema=False)

FormText = Annotated[str, Form(max_length=500)]


@sign_in_router.post(SIGN_IN)
async def enter(
    services: ServicesDep,
    request: Request,
    name: FormText = "",
    password: FormText = "",
    token: FormText = "",
    code: FormText = "",
    invitation: FormText = "",
    setup_code: FormText = "",
    next: FormText = "",
) -> RedirectResponse:
    """Signs in with a name and a password, a token, or a link's code, or registers with an invitation or the setup
    code. Then redirects to `next`, or back to the form on failure."""
    destination = local_path(next, HOME_PATH)
    try:
        if code:
            signed_in = await sign_in.by_code(services, request.scope, code)
        elif token:
            signed_in = await sign_in.by_token(services, token)
        elif invitation or setup_code:
            body = _registration_body(name, password, invitation, setup_code)
            signed_in = await sign_in.by_registration(services, request.scope, body)
        else:
            signed_in = await sign_in.by_password(services, request.scope, None, name, password)
    except PerdureError as error:
        query = {"failed": error.code, "next": destination, "name": name}
        if invitation:
            query["invitation"] = invitation
        if isinstance(error, LimitReached):
            query["after"] = str(error.details.get("retry_after_seconds", ""))
        return RedirectResponse(f"{SIGN_IN}?{urlencode(query)}", _SEE_OTHER)
    answer = RedirectResponse(destination, _SEE_OTHER)
    sign_in.set_session_cookies(services, request.scope, answer, signed_in)
    return answer


def _registration_body(name: str, password: str, invitation: str, setup_code: str) -> RegisterBody:
    try:
        return RegisterBody(name=name, password=password, invitation=invitation, setup_code=setup_code)
    except ValidationError:
        raise CallerError(
            "registration_invalid",
            (
                "The name or the password is invalid; names have lower-case letters, digits, dots and dashes, and "
                "passwords 8 to 200 characters"
            ),
            status=422,
        ) from None


@sign_in_router.post("/sign-out")
async def leave(services: ServicesDep, request: Request, caller: Visitor) -> RedirectResponse:
    """Signs out."""
    if caller is not None and caller.session_id is not None:
        async with services.db.transaction(caller.tenant_id) as tx:
            await sign_in_store.end_session(tx, caller.session_id, caller.user_id, "signed out")
    answer = RedirectResponse(SIGN_IN, _SEE_OTHER)
    sign_in.clear_session_cookie(services, request.scope, answer)
    return answer


team_router = APIRouter(prefix="/v1/team", tags=["team"])
Name = Annotated[str, Path(max_length=128, description="Name of the user")]


@team_router.get("")
async def list_members(services: ServicesDep, caller: Caller) -> dict[str, object]:
    """Lists all team members, including closed accounts."""
    caller.require_role("admin")
    async with services.db.transaction(caller.tenant_id) as tx:
        return {"items": [asdict(member) for member in await users.list_members(tx)], "next": None}


@team_router.post("/invitations", status_code=201)
async def invite(services: ServicesDep, caller: Caller, request: Request, body: InviteBody) -> JSONResponse:
    """Invites a new user with these roles. The user sets a password with the invitation, once, within 7 days. The
    invitation is shown only in this response. Ignores Idempotency-Key, because invitations are not stored in readable
    form."""
    caller.require_role("admin")
    async with services.db.transaction(caller.tenant_id) as tx:
        await users.add_user(tx, body.name, body.display_name, body.roles, caller.user_id, caller.credential)
        return await _invitation_response(tx, services, request, body.name, caller)


@team_router.post("/{name}/invitation", status_code=201)
async def invite_again(services: ServicesDep, caller: Caller, request: Request, name: Name) -> JSONResponse:
    """Creates a new invitation for an existing user, to set a first password or replace a forgotten one."""
    caller.require_role("admin")
    async with services.db.transaction(caller.tenant_id) as tx:
        return await _invitation_response(tx, services, request, name, caller)


@team_router.patch("/{name}")
async def change(services: ServicesDep, caller: Caller, name: Name, body: MemberBody) -> dict[str, object]:
    """Changes a user's roles or display name, or closes or reopens the account. Takes effect with the next request."""
    caller.require_role("admin")
    changes = body.model_dump(exclude_none=True)
    async with services.db.transaction(caller.tenant_id) as tx:
        return asdict(await users.change_member(tx, name, caller.user_id, caller.credential, **changes))


@team_router.delete("/{name}")
async def close(services: ServicesDep, caller: Caller, name: Name) -> dict[str, object]:
    """Closes an account: its sessions end and its tokens become invalid. The user's records are kept."""
    caller.require_role("admin")
    async with services.db.transaction(caller.tenant_id) as tx:
        return asdict(await users.change_member(tx, name, caller.user_id, active=False))


async def _invitation_response(
    tx: Connection, services: Services, request: Request, name: str, caller: Principal
) -> JSONResponse:
    made_at = sign_in.invited_at(services, request.scope, caller.tenant_id)
    invitation: Invitation = await registration.invite(tx, name, caller.user_id, caller.credential, made_at)
    answer = {"name": invitation.name, "invitation": invitation.token, "expires_at": invitation.expires_at}
    return JSONResponse(jsonable_encoder(answer), 201, {"Cache-Control": "no-store"})


users_router = APIRouter(prefix="/v1", tags=["users"])
SUBJECTS_PAGE_LIMIT = 200


@users_router.get("/users")
async def list_users(
    services: ServicesDep,
    caller: Caller,
    gateway: Annotated[str | None, Query(max_length=63, description="The subjects of this gateway instead")] = None,
    limit: Limit = SUBJECTS_PAGE_LIMIT,
    cursor: Cursor = None,
) -> dict[str, object]:
    """Lists all users. With `gateway`, lists the subjects on whose behalf this user acts, newest first, in pages."""
    caller.require_role("admin")
    following = None
    async with services.db.transaction(caller.tenant_id) as tx:
        if gateway is None:
            found = await users.list_users(tx)
        else:
            max_items = min(limit, SUBJECTS_PAGE_LIMIT)
            found, following = await subjects.list_subjects(tx, gateway, max_items, cursor)
    return {"items": [asdict(user) for user in found], "next": following}


@users_router.post("/users", status_code=201)
async def add(services: ServicesDep, caller: Caller, body: NewUser, key: Key = None) -> JSONResponse:
    """Adds a user. Create a token for the user next."""
    caller.require_role("admin")

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        user = await users.add_user(tx, body.name, body.display_name, body.roles, caller.user_id, caller.credential)
        return 201, asdict(user), None

    return await run_once(services, caller, "users", key, body, work)


@users_router.post("/users/{name}/roles")
async def roles(services: ServicesDep, caller: Caller, name: Name, body: RolesBody, key: Key = None) -> JSONResponse:
    """Replaces the roles of a user."""
    caller.require_role("admin")

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        return 200, asdict(await users.set_roles(tx, name, body.roles, caller.user_id, caller.credential)), None

    return await run_once(services, caller, f"users/{name}/roles", key, body, work)


@users_router.delete("/users/{name}/data")
async def erase(
    services: ServicesDep,
    caller: Caller,
    name: Name,
    subject: Annotated[
        str | None,
        Query(max_length=MAX_SUBJECT_CHARACTERS, description="Erases this subject of the gateway, not the gateway"),
    ] = None,
) -> dict[str, object]:
    """Permanently erases everything that a user wrote; the audit trail keeps what happened. `name` can also be the id
    of a gateway's subject. A gateway is erased after its subjects (409 `subjects_left`). If interrupted, repeat the
    request to continue."""
    caller.require_role("admin")
    if subject is not None:
        async with services.db.transaction(caller.tenant_id) as tx:
            name = await subjects.name_of_subject(tx, name, subject)
    histories = partial(delete_histories, services.notifier.client)
    return await erasure.erase(services.db, caller.tenant_id, name, caller.user_id, services.live, histories)


@users_router.post("/users/{name}/tokens", status_code=201)
async def token(services: ServicesDep, caller: Caller, name: Name, body: TokenBody) -> JSONResponse:
    """Creates a token for a user. It is shown only in this response. Ignores Idempotency-Key, because tokens are not
    stored in readable form."""
    caller.require_role("admin")
    async with services.db.transaction(caller.tenant_id) as tx:
        secret = await users.mint_token(tx, name, body.label, caller.user_id, caller.credential)
    return JSONResponse({"name": name, "token": secret}, 201)
