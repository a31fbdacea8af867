"""My decisions: what I decided, and what became of each."""

import json
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from policy.told_results import inside
from reviewer.approval_page import PAST
from reviewer.view import page
from reviewer.visit import Visitor

router = APIRouter()
_SHOWN = 25


@router.get("/review/mine")
async def mine(visit: Visitor, cursor: Annotated[str | None, Query(max_length=400)] = None) -> HTMLResponse:
    """The caller's decisions, newest first."""
    found = await visit.api.approvals.decided(limit=_SHOWN, cursor=cursor)
    return page(visit, "mine.html", found=found, past=PAST, came_of=came_of)


def came_of(result: str) -> str:
    """What a call answered: the sentence in it, where it has one for people."""
    try:
        read = inside(json.loads(result)).result
    except ValueError:  # also where only its beginning is told
        return result
    message = read.get("message") if isinstance(read, dict) else None
    return message if isinstance(message, str) and message else result
