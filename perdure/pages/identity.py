"""The sign-in page. Its form posts to the API, which starts the session."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from perdure.client import ApiError
from perdure.core.request_origin import local_path
from perdure.pages.render import page
from perdure.pages.request import AnonymousVisit, DraftPost, PageProblem
from perdure.schemas.identity import Ways

sign_in_router = APIRouter()
_FAILURE_MESSAGES = {
    "sign_in_failed": "The name or the password is wrong.",
    "token_invalid": "This token is invalid or has been revoked.",
    "invitation_invalid": "This invitation is not for this name, was used, or has expired.",
    "invitation_needed": "Registration needs an invitation. Ask an administrator for one.",
    "setup_code_needed": "Enter the setup code that the start of the stack (such as “make up”) or "
    "“python -m perdure.apps.bootstrap” printed.",
    "setup_code_invalid": "This setup code is wrong or was replaced. For a new one, start the stack again as before, "
    "such as with “make up”, or run “python -m perdure.apps.bootstrap” with the same settings.",
    "too_many_tries": "Too many wrong setup codes came from your address. The log of the server, and the terminal of "
    "“perdure up”, state how to register without waiting.",
    "registration_invalid": (
        "The password or the name is invalid. A password has 8 to 200 characters; a name has lower-case letters, "
        "digits, dots and dashes."
    ),
    "password_weak": "This password is too easy to guess. Use a longer one, for example four unrelated words.",
    "rate_limited": "Too many requests came from your address.",
    "sign_in_delayed": "Too many failed sign-in attempts.",
    "sign_in_busy": "Too many people are signing in.",
    "code_invalid": (
        "This link was already used, has expired, or belongs to another machine. Run “perdure link” for a new one."
    ),
    "oidc_refused": "The identity provider denied the sign-in.",
    "chat_token": "A chat token cannot be used to sign in.",
    "foreign_origin": "A page of another site made this request, so nothing was linked.",
    "identity_taken": "This identity is linked to another user.",
    "user_exists": "This name is already taken. If the account is yours, sign in below to link the provider.",
}
_LINK_PROVIDER_PATH = "/v1/auth/oidc/start?link=true"
"""Address to which users continue who sign in to link the provider."""
_ENDED_MESSAGE = "This setup code cannot be used."
"""The message for an ended code. The page also states the reason."""
_REGISTRATION_ERRORS = frozenset({"registration_invalid", "password_weak"})
"""Error codes of a registration, with an invitation or the setup code."""
_DEFAULT_MESSAGE = "Sign-in failed. Try again in a moment."
Text = Annotated[str, Query(max_length=2_000)]


@sign_in_router.get("/sign-in")
async def sign_in(
    visit: AnonymousVisit,
    next: Text = "",
    failed: Text = "",
    name: Text = "",
    code: Text = "",
    invitation: Text = "",
    after: Annotated[int, Query(ge=0, le=3_600)] = 0,
) -> HTMLResponse:
    """Shows the form: name and password, a token, or an invitation and a first password.

    With the code of a link, it shows only the button that uses the code.
    """
    destination = _LINK_PROVIDER_PATH if failed == "user_exists" else local_path(next, "/")
    message = _FAILURE_MESSAGES.get(failed, _DEFAULT_MESSAGE) if failed else ""
    if after:
        message += f" Try again in {after} s."
    try:
        ways = Ways() if code else await visit.api.auth.ways()
    except ApiError:
        ways = Ways()
    if failed == "setup_code_invalid" and ways.setup_code_ended:
        message = _ENDED_MESSAGE
    return page(
        visit,
        "sign_in.html",
        destination=destination,
        message=message,
        name=name,
        code=code,
        ways=ways,
        by_token=failed == "token_invalid",
        is_registration=failed.startswith(("setup_code", "too_many_tries"))
        or (failed in _REGISTRATION_ERRORS and ways.setup_code and not invitation),
        invitation=invitation,
    )


# The page of an ended session cannot be rendered again, so one more click sends its form unchanged.
resend_router = APIRouter()


@resend_router.post("/kept")
async def show_kept_form(post: DraftPost) -> HTMLResponse:
    """Shows the typed text in a form of this session. Nothing is sent without a click."""
    destination = local_path(post.form.get("kept_for"), "")
    if not destination:
        raise PageProblem(422, "It is unknown which page this text belongs to.")
    pairs = [pair for pair in post.form.pairs if pair[0] not in ("csrf", "kept_for")]
    reason = "Nothing has been sent yet. Your text is kept here."
    return page(
        post.visit, "resend.html", title="You have signed in again", reason=reason, pairs=pairs, action=destination
    )
