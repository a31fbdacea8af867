"""The pages of agents: their tools, limits and approvals."""

import asyncio

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from perdure.pages.diagrams import draw_graph
from perdure.pages.render import page
from perdure.pages.request import Visitor

agents_router = APIRouter()
PROMISES = {
    "read": "only reads, so it can be retried freely",
    "local": "changes Perdure's own data, exactly once",
    "keyed": "changes an external system that accepts idempotency keys, so a retry has no second effect",
    "opaque": "changes an external system at most once; if a crash hides the outcome, a person settles it",
}
"""Descriptions of the effect classes."""


@agents_router.get("/agents")
async def agents(visit: Visitor) -> HTMLResponse:
    """Lists the agents."""
    found = await visit.api.agents.list()
    return page(visit, "agents.html", agents=found.items)


@agents_router.get("/agents/{agent_id}")
async def agent(visit: Visitor, agent_id: str) -> HTMLResponse:
    """Shows one agent with its tools."""
    found, tools = await asyncio.gather(visit.api.agents.get(agent_id), visit.api.agents.tools(agent_id))
    return page(visit, "agent.html", agent=found, whole=found.model_dump(), tools=tools.items, promises=PROMISES)


topology_router = APIRouter()
RETRIES = {
    "until_back": "retried until it succeeds",
    "provider": "provider errors are counted, and the wait that a provider asks for is respected",
    "tool": "retried only as far as the tool's effect class allows",
}
"""Descriptions of the retry classes."""


@topology_router.get("/topologies/{name}")
async def topology(visit: Visitor, name: str) -> HTMLResponse:
    """Shows a topology from its manifest."""
    manifest = (await visit.api.topologies.get(name)).model_dump()
    graphs = [("", manifest), *((node["id"], node["sub"]) for node in manifest["nodes"] if "sub" in node)]
    pictures = [(inside, each, draw_graph(each, own=f"graph-{at}")) for at, (inside, each) in enumerate(graphs)]
    return page(visit, "topology.html", manifest=manifest, pictures=pictures, retries=RETRIES)
