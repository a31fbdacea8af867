"""The page of one turn."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from reviewer.turn_page import SHOWN, told_of, value
from reviewer.view import page
from reviewer.visit import Visitor

router = APIRouter()


@router.get("/turns/{turn_id}")
async def turn(visit: Visitor, turn_id: str, mark: Annotated[str, Query(max_length=64)] = "") -> Response:
    """The page; for its script the part that changes, and 204 where nothing has since `mark`."""
    told = await told_of(visit.api, turn_id)
    if visit.is_live and mark == told.mark:
        return Response(status_code=204)
    template = "turn_now.html" if visit.is_live else "turn.html"
    return page(visit, template, told=told, turn=told.turn, value=value, shown=SHOWN)
