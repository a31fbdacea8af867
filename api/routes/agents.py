"""Agents and topologies: what there is, and how it looks."""

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from api.auth import Open, Reader
from graph import registry
from graph.manifest import manifest_of
from graph.mermaid import mermaid_of
from store import content

router = APIRouter(prefix="/v1", tags=["agents"])


@router.get("/agents")
async def agents(services: Open, who: Reader) -> dict[str, object]:
    """Every agent that a conversation can be with."""
    async with services.db.transaction(who.tenant_id) as tx:
        found = await content.listed(tx)
    items = [
        {
            "id": agent.definition.id,
            "title": agent.definition.title,
            "app": app,
            "topology": agent.definition.topology,
            "model": agent.definition.model,
            "version": agent.version,
            "limits": agent.definition.limits.model_dump(),
            "tools": [card.name for card in agent.cards],
            "examples": list(agent.definition.examples),
            "files": list(agent.definition.files),
        }
        for app, agent in found
    ]
    return {"items": items, "next": None}


@router.get("/agents/{agent_id}/tools")
async def tools(services: Open, who: Reader, agent_id: str) -> dict[str, object]:
    """The tools of an agent, with effect class and whether they need an approval."""
    async with services.db.transaction(who.tenant_id) as tx:
        agent = await content.current(tx, agent_id)
    shown = [card.model_dump(mode="json", exclude={"secrets"}) for card in agent.cards]
    return {"items": shown, "next": None}


@router.get("/topologies")
async def topologies(who: Reader) -> dict[str, object]:
    """Every topology by name."""
    items = [
        {"name": name, "version": registry.spec(name).version, "nodes": [node.id for node in registry.spec(name).nodes]}
        for name in registry.names()
    ]
    return {"items": items, "next": None}


@router.get("/topologies/{name}.mmd", response_class=PlainTextResponse)
async def mermaid(who: Reader, name: str) -> PlainTextResponse:
    """A topology as a Mermaid flow chart."""
    return PlainTextResponse(mermaid_of(manifest_of(registry.spec(name))), media_type="text/vnd.mermaid; charset=utf-8")


@router.get("/topologies/{name}")
async def topology(who: Reader, name: str) -> dict[str, object]:
    """A topology as JSON: nodes, edges, entries, limits."""
    return dict(manifest_of(registry.spec(name)))
