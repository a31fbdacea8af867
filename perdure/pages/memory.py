"""The pages of promotions to shared memory: an admin reads each text as it would be shared, and decides."""

from dataclasses import dataclass, field
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from perdure.client import ApiError, AsyncClient
from perdure.client.memory import decide_promotion, list_promotions, list_shared, read_promotion, read_shared
from perdure.pages.approvals.page import text_differences
from perdure.pages.render import page
from perdure.pages.request import SEND_AGAIN, BrowserRequest, Form, PageProblem, Posted, Visitor
from perdure.schemas.memory import Promotion, SharedDocument

router = APIRouter()
PROMOTIONS_PATH = "/review/memory"
_PAGE_LIMIT = 25
_DECISIONS = ("approve", "reject")


@dataclass(frozen=True, slots=True)
class RejectedForm:
    """A form that was not accepted."""

    form: Form = field(default_factory=lambda: Form(()))
    why: str = ""


@router.get(PROMOTIONS_PATH)
async def show_promotions(
    visit: Visitor, all: bool = False, cursor: Annotated[str | None, Query(max_length=400)] = None
) -> HTMLResponse:
    """Lists the pending promotions, or all of them, newest first."""
    found = await visit.api.send(list_promotions(status=None if all else "pending", limit=_PAGE_LIMIT, cursor=cursor))
    return page(visit, "proposals.html", found=found, every=all)


@router.get(PROMOTIONS_PATH + "/{promotion_id}")
async def show_promotion(visit: Visitor, promotion_id: str) -> HTMLResponse:
    """Shows one promotion with its text, compared with the shared document that it would change."""
    return await _show_promotion(visit, promotion_id, RejectedForm())


@router.post(PROMOTIONS_PATH + "/{promotion_id}/decision")
async def decide(post: Posted, promotion_id: str) -> Response:
    """Approves or rejects the text that was shown."""
    form, taken = post.form, post.form.get("decision")
    if taken not in _DECISIONS:
        raise PageProblem(422, "A promotion can only be approved or rejected.")
    comment = form.whole("comment") or ""
    try:
        await post.visit.api.send(
            decide_promotion(promotion_id, taken, form.get("sha256"), comment, key=form.get("key"))
        )
    except ApiError as error:
        if error.status in (401, 404):
            raise
        why = SEND_AGAIN if error.status in (0, 503) else f"Not done: {error.message}"
        return await _show_promotion(post.visit, promotion_id, RejectedForm(form, why), status=error.status or 503)
    return RedirectResponse(f"{PROMOTIONS_PATH}/{promotion_id}", 303)


async def _show_promotion(
    visit: BrowserRequest, promotion_id: str, sent: RejectedForm, *, status: int = 200
) -> HTMLResponse:
    found = await visit.api.send(read_promotion(promotion_id))
    shared = await _shared_document(visit.api, found) if found.status == "pending" else None
    me = visit.me or await visit.api.auth.me()
    return page(
        visit,
        "proposal.html",
        status=status,
        found=found,
        shared=shared,
        lines=text_differences(shared.content, found.content) if shared and shared.content and found.content else [],
        moved=found.status == "pending" and (shared.sha256 if shared else None) != found.base_sha256,
        may_decide="admin" in me.roles and found.proposed_by != me.name,
        own=found.proposed_by == me.name,
        sent=sent,
    )


async def _shared_document(api: AsyncClient, found: Promotion) -> SharedDocument | None:
    """Returns the shared document that has this address now."""
    listed = (await api.send(list_shared(found.path))).items
    named = next((each for each in listed if (each.store, each.path) == (found.store, found.path)), None)
    if named is None:
        return None
    return await api.send(read_shared(named.id))
