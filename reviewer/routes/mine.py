"""My decisions: what I decided, and what became of each."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from reviewer.approval_page import PAST
from reviewer.view import page
from reviewer.visit import Visitor

router = APIRouter()
_SHOWN = 25


@router.get("/review/mine")
async def mine(visit: Visitor, cursor: Annotated[str | None, Query(max_length=400)] = None) -> HTMLResponse:
    """The caller's decisions, newest first."""
    found = await visit.api.approvals.decided(limit=_SHOWN, cursor=cursor)
    return page(visit, "mine.html", found=found, past=PAST)
