"""The page of the API's reference: no script, and nothing from another host."""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from perdure.client.calls import Call
from reviewer.reference_page import operations
from reviewer.view import page
from reviewer.visit import Stranger

router = APIRouter()


@router.get("/docs")
async def reference(visit: Stranger) -> HTMLResponse:
    """All that can be sent to the API, for whoever writes a program."""
    said = await visit.api.send(Call("GET", "/openapi.json", lambda response: response.json()))
    return page(visit, "reference.html", groups=operations(said), about=said["info"])
