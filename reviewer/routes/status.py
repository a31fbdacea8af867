"""The page of the deployment: is everything there, and what waits."""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from reviewer.view import page
from reviewer.visit import Visitor

router = APIRouter()


@router.get("/status")
async def status(visit: Visitor) -> HTMLResponse:
    """The page; for its script the part that changes."""
    found = await visit.api.status.get()
    return page(visit, "status_now.html" if visit.is_live else "status.html", found=found)
