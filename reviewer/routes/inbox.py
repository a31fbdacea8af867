"""The inbox: what waits for a decision."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, RedirectResponse

from reviewer.view import page
from reviewer.visit import Visitor

router = APIRouter()
_SHOWN = 50


@router.get("/")
async def home() -> RedirectResponse:
    """Where a person begins."""
    return RedirectResponse("/review", 303)


@router.get("/review")
async def inbox(visit: Visitor, cursor: Annotated[str | None, Query(max_length=400)] = None) -> HTMLResponse:
    """What waits, newest first."""
    found = await visit.api.approvals.list(status="pending", limit=_SHOWN, cursor=cursor)
    return page(visit, "inbox.html", found=found)
