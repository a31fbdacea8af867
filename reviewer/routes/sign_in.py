"""The way in. What its form posts is the API's, which begins the session."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from perdure.client import ApiError, Ways
from policy.same_site import local_path
from reviewer.view import page
from reviewer.visit import Stranger

router = APIRouter()
_WORDS = {
    "sign_in_failed": "The name or the password is wrong.",
    "token_invalid": "This token is not known here.",
    "invitation_invalid": "This is no invitation for this name, or it was used before, or is too old.",
    "registration_invalid": "A password has 8 to 200 characters, and the name is the one that was invited.",
    "rate_limited": "Too many tries came from your address.",
    "sign_in_busy": "Too many people sign in at once.",
    "code_invalid": "This link was used before, or is too old, or not of this machine. “perdure link” prints another.",
    "oidc_refused": "The provider did not let you in.",
    "chat_token": "A chat's token signs nobody in.",
    "foreign_origin": "A page of another site asked for this, so nothing was linked.",
    "identity_taken": "Somebody else signs in by this identity.",
    "user_exists": "Somebody here has this name already. If that is you, sign in below: the provider is linked then.",
}
_LINK = "/v1/auth/oidc/start?link=true"
"""Where somebody goes on who signs in to link the provider."""
_OTHERWISE = "Signing in did not work. Try again in a moment."
Text = Annotated[str, Query(max_length=2_000)]


@router.get("/sign-in")
async def sign_in(
    visit: Stranger,
    next: Text = "",
    failed: Text = "",
    name: Text = "",
    code: Text = "",
    invitation: Text = "",
    after: Annotated[int, Query(ge=0, le=3_600)] = 0,
) -> HTMLResponse:
    """The form: a name and a password, a token, or an invitation and a first password; or, with the code of a link, the
    one button that uses it."""
    to = _LINK if failed == "user_exists" else local_path(next, "/")
    said = _WORDS.get(failed, _OTHERWISE) if failed else ""
    if after:
        said += f" Try again in {after} s."
    try:
        ways = Ways() if code else await visit.api.auth.ways()
    except ApiError:
        ways = Ways()
    return page(
        visit,
        "sign_in.html",
        to=to,
        said=said,
        name=name,
        code=code,
        ways=ways,
        by_token=failed == "token_invalid",
        invitation=invitation,
    )
