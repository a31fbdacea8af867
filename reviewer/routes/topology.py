"""The page of a topology: its graph, its nodes, its limits, and how what its nodes call is tried."""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from reviewer.graph_drawing import graph
from reviewer.view import page
from reviewer.visit import Visitor

router = APIRouter()
RETRIES = {
    "until_back": "tried until it is done: a part of ours may be away for a while",
    "provider": "what a provider asks for is waited for, and its errors are counted",
    "tool": "what a repeated attempt may do, the tool's effect class decides",
}
"""Of each retry class."""


@router.get("/topologies/{name}")
async def topology(visit: Visitor, name: str) -> HTMLResponse:
    """The page, all of it from the manifest."""
    manifest = (await visit.api.topologies.get(name)).model_dump()
    graphs = [("", manifest), *((node["id"], node["sub"]) for node in manifest["nodes"] if "sub" in node)]
    pictures = [(inside, each, graph(each, own=f"graph-{at}")) for at, (inside, each) in enumerate(graphs)]
    return page(visit, "topology.html", manifest=manifest, pictures=pictures, retries=RETRIES)
