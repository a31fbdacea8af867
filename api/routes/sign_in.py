"""The forms by which a person signs in and out in a browser, with or without its scripts."""

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from api import sign_in
from api.auth import SIGN_IN, Open, Visitor
from api.auth_bodies import RegisterBody
from contracts.errors import CallerError, LimitReached, PerdureError
from policy.same_site import local_path
from store import sessions

router = APIRouter(tags=["auth"], include_in_schema=False)
HOME = "/review"
_SEE_OTHER = 303
Short = Annotated[str, Form(max_length=500)]


@router.post(SIGN_IN)
async def enter(
    services: Open,
    request: Request,
    name: Short = "",
    password: Short = "",
    token: Short = "",
    code: Short = "",
    invitation: Short = "",
    setup_code: Short = "",
    next: Short = "",
) -> RedirectResponse:
    """Sign in by name and password, by a token or by a link's code, or register with an invitation or the setup code
    and a first password; go on to `next`, or back to the form if that failed."""
    to = local_path(next, HOME)
    try:
        if code:
            signed_in = await sign_in.by_code(services, request.scope, code)
        elif token:
            signed_in = await sign_in.by_token(services, token)
        elif invitation or setup_code:
            body = _registration(name, password, invitation, setup_code)
            signed_in = await sign_in.by_registration(services, body)
        else:
            signed_in = await sign_in.by_password(services, request.scope, None, name, password)
    except PerdureError as error:
        said = {"failed": error.code, "next": to, "name": name}
        if invitation:
            said["invitation"] = invitation
        if isinstance(error, LimitReached):
            said["after"] = str(error.details.get("retry_after_seconds", ""))
        return RedirectResponse(f"{SIGN_IN}?{urlencode(said)}", _SEE_OTHER)
    answer = RedirectResponse(to, _SEE_OTHER)
    sign_in.remember(services, request.scope, answer, signed_in)
    return answer


def _registration(name: str, password: str, invitation: str, setup_code: str) -> RegisterBody:
    try:
        return RegisterBody(name=name, password=password, invitation=invitation, setup_code=setup_code)
    except ValidationError:
        raise CallerError("registration_invalid", "The name or the password is invalid", status=422) from None


@router.post("/sign-out")
async def leave(services: Open, request: Request, who: Visitor) -> RedirectResponse:
    """Sign out."""
    if who is not None and who.session_id is not None:
        async with services.db.transaction(who.tenant_id) as tx:
            await sessions.end(tx, who.session_id, who.user_id, "signed out")
    answer = RedirectResponse(SIGN_IN, _SEE_OTHER)
    sign_in.forget(services, request.scope, answer)
    return answer
