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
    visit: Stranger, next: Text = "", failed: Text = "", name: Text = "", code: Text = ""
) -> HTMLResponse:
    """The form: a name and a password, or a token; or, with the code of a link, the one button that uses it."""
    to = _LINK if failed == "user_exists" else local_path(next, "/")
    said = _WORDS.get(failed, _OTHERWISE) if failed else ""
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
    )
