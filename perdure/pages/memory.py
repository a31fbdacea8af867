"""The pages of promotions to shared memory: an admin reads each text as it would be shared, and decides."""

from dataclasses import dataclass, field
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from perdure.client import ApiError, AsyncClient
from perdure.client.memory import decide_promotion, list_promotions, list_shared, read_promotion, read_shared
from perdure.pages.approvals.differences import text_differences
from perdure.pages.render import page
from perdure.pages.request import SEND_AGAIN_MESSAGE, BrowserRequest, CheckedPost, Form, PageProblem, SignedInVisit
from perdure.schemas.memory import Promotion, SharedDocument

router = APIRouter()
PROMOTIONS_PATH = "/review/memory"
_PAGE_LIMIT = 25
_DECISIONS = ("approve", "reject")


@dataclass(frozen=True, slots=True)
class RejectedForm:
    """A form that was not accepted."""

    form: Form = field(default_factory=lambda: Form(()))
    reason: str = ""


@router.get(PROMOTIONS_PATH)
async def show_promotions(
    visit: SignedInVisit, all: bool = False, cursor: Annotated[str | None, Query(max_length=400)] = None
) -> HTMLResponse:
    """Lists the pending promotions, or all of them, newest first."""
    promotions = await visit.api.send(
        list_promotions(status=None if all else "pending", limit=_PAGE_LIMIT, cursor=cursor)
    )
    return page(visit, "proposals.html", promotions=promotions, shows_all=all)


@router.get(PROMOTIONS_PATH + "/{promotion_id}")
async def show_promotion(visit: SignedInVisit, promotion_id: str) -> HTMLResponse:
    """Shows one promotion with its text, compared with the shared document that it would change."""
    return await _show_promotion(visit, promotion_id, RejectedForm())


@router.post(PROMOTIONS_PATH + "/{promotion_id}/decision")
async def decide(post: CheckedPost, promotion_id: str) -> Response:
    """Approves or rejects the text that was shown."""
    form, choice = post.form, post.form.get("decision")
    if choice not in _DECISIONS:
        raise PageProblem(422, "A promotion can only be approved or rejected.")
    comment = form.raw("comment") or ""
    try:
        await post.visit.api.send(
            decide_promotion(promotion_id, choice, form.get("sha256"), comment, key=form.get("key"))
        )
    except ApiError as error:
        if error.status in (401, 404):
            raise
        reason = SEND_AGAIN_MESSAGE if error.status in (0, 503) else f"Not done: {error.message}"
        return await _show_promotion(post.visit, promotion_id, RejectedForm(form, reason), status=error.status or 503)
    return RedirectResponse(f"{PROMOTIONS_PATH}/{promotion_id}", 303)


async def _show_promotion(
    visit: BrowserRequest, promotion_id: str, rejected: RejectedForm, *, status: int = 200
) -> HTMLResponse:
    promotion = await visit.api.send(read_promotion(promotion_id))
    shared = await _shared_document(visit.api, promotion) if promotion.status == "pending" else None
    me = visit.me or await visit.api.auth.me()
    return page(
        visit,
        "proposal.html",
        status=status,
        promotion=promotion,
        shared=shared,
        lines=text_differences(shared.content, promotion.content)
        if shared and shared.content and promotion.content
        else [],
        has_changed=promotion.status == "pending" and (shared.sha256 if shared else None) != promotion.base_sha256,
        may_decide="admin" in me.roles and promotion.proposed_by != me.name,
        is_own=promotion.proposed_by == me.name,
        rejected=rejected,
    )


async def _shared_document(api: AsyncClient, promotion: Promotion) -> SharedDocument | None:
    """Returns the shared document that has this address now."""
    documents = (await api.send(list_shared(promotion.path))).items
    match = next(
        (document for document in documents if (document.store, document.path) == (promotion.store, promotion.path)),
        None,
    )
    if match is None:
        return None
    return await api.send(read_shared(match.id))
