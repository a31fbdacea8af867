"""One approval: its page, the page drawn again with what was typed into it, and what became of it meanwhile."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import HTMLResponse

from reviewer.approval_page import Sent, show
from reviewer.queue import opened_from
from reviewer.view import page
from reviewer.visit import Typed, Visitor

router = APIRouter()


@router.get("/review/{approval_id}")
async def approval(visit: Visitor, approval_id: str) -> HTMLResponse:
    """The page."""
    return await show(visit, await visit.api.approvals.get(approval_id))


@router.post("/review/{approval_id}/draft")
async def draft(post: Typed, approval_id: str) -> HTMLResponse:
    """The page with what was typed before; nothing is sent."""
    found = await post.visit.api.approvals.get(approval_id)
    why = "Nothing was sent yet. What you typed is below."
    if not found.allowed_decisions:
        why = "Nothing was sent: you may not decide on this, or nobody can any more. What was typed is below."
    return await show(post.visit, found, Sent(post.form, why))


@router.get("/review/{approval_id}/state")
async def state(
    visit: Visitor, approval_id: str, version: int, status: Annotated[str, Query(max_length=40)]
) -> Response:
    """What has changed since the page was made, for its script; 204 where nothing has."""
    found = await visit.api.approvals.get(approval_id)
    if (found.version, found.status) == (version, status):
        return Response(status_code=204)
    within = opened_from(visit).within
    return page(visit, "meanwhile.html", approval=found, was_open=status == "pending", within=within)
