"""The pages of the agents: what each may do, up to where, and what of it a person must allow."""

import asyncio

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from reviewer.view import page
from reviewer.visit import Visitor

router = APIRouter()
PROMISES = {
    "read": "changes nothing, so it is repeated freely",
    "local": "changes what is kept here, exactly once",
    "keyed": "changes something outside, once in effect: its target honours a key",
    "opaque": "changes something outside, at most once: what a crash leaves unknown, a person settles",
}
"""Of each effect class."""


@router.get("/agents")
async def agents(visit: Visitor) -> HTMLResponse:
    """All of them."""
    found = await visit.api.agents.list()
    return page(visit, "agents.html", agents=found.items)


@router.get("/agents/{agent_id}")
async def agent(visit: Visitor, agent_id: str) -> HTMLResponse:
    """One, with its tools."""
    found, tools = await asyncio.gather(visit.api.agents.get(agent_id), visit.api.agents.tools(agent_id))
    return page(visit, "agent.html", agent=found, whole=found.model_dump(), tools=tools.items, promises=PROMISES)
