"""The way in. What its form posts is the API's, which begins the session."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from policy.same_site import local_path
from reviewer.view import page
from reviewer.visit import Stranger

router = APIRouter()
_WORDS = {
    "sign_in_failed": "The name or the password is wrong.",
    "token_invalid": "This token is not known here.",
}
_OTHERWISE = "Signing in did not work. Try again in a moment."
Text = Annotated[str, Query(max_length=2_000)]


@router.get("/sign-in")
async def sign_in(visit: Stranger, next: Text = "", failed: Text = "", name: Text = "") -> HTMLResponse:
    """The form: a name and a password, or a token."""
    to = local_path(next, "/review")
    said = _WORDS.get(failed, _OTHERWISE) if failed else ""
    return page(visit, "sign_in.html", to=to, said=said, name=name, by_token=failed == "token_invalid")
