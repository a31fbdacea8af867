"""The page of effects whose outcome is unknown after a crash. Users settle them here."""

from datetime import UTC, datetime
from typing import Literal

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from perdure.client import ApiError
from perdure.pages.render import page
from perdure.pages.request import SEND_AGAIN_MESSAGE, BrowserRequest, CheckedPost, Form, PageProblem, SignedInVisit

router = APIRouter()
UNSETTLED_PATH = "/review/unsettled"
_PAGE_LIMIT = 25
_OUTCOMES: dict[str, Literal["happened", "did_not_happen"]] = {
    "happened": "happened",
    "did_not_happen": "did_not_happen",
}


@router.get(UNSETTLED_PATH)
async def unsettled(visit: SignedInVisit) -> HTMLResponse:
    """Lists these effects, newest first."""
    return await _show_unsettled(visit)


@router.post(UNSETTLED_PATH + "/{key}")
async def settle(post: CheckedPost, key: str) -> Response:
    """Settles an effect. Its turn then continues with the outcome."""
    form, outcome = post.form, _OUTCOMES.get(post.form.get("outcome"))
    if outcome is None:
        raise PageProblem(422, "Select whether the effect happened.")
    try:
        comment = form.raw("comment") or ""
        await post.visit.api.effects.settle(key, outcome, comment, idempotency_key=form.get("key"))
    except ApiError as error:
        if error.status in (401, 404):
            raise
        reason = SEND_AGAIN_MESSAGE if error.status in (0, 503) else f"Not settled: {error.message}"
        return await _show_unsettled(post.visit, key, form, reason, status=error.status or 503)
    return RedirectResponse(UNSETTLED_PATH, 303)


async def _show_unsettled(
    visit: BrowserRequest, key: str = "", typed: Form | None = None, reason: str = "", *, status: int = 200
) -> HTMLResponse:
    """Returns the page, with the text typed about one effect and the reason why it was not accepted."""
    effects = await visit.api.effects.list(limit=_PAGE_LIMIT)
    values = {"typed_key": key, "typed": typed or Form(()), "reason": reason, "now": datetime.now(UTC)}
    return page(visit, "unsettled.html", status=status, effects=effects, **values)
