"""The pages of agents: their tools, limits and approvals."""

import asyncio

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from perdure.core.agents.tool_rules import unavailable_sentences, unsent_sentences
from perdure.pages.diagrams import draw_graph
from perdure.pages.render import page
from perdure.pages.request import SignedInVisit

agents_router = APIRouter()
EFFECT_DESCRIPTIONS = {
    "read": "only reads, so it can be retried freely",
    "local": "changes Perdure's own data, exactly once",
    "keyed": "changes an external system that accepts idempotency keys, so a retry has no second effect",
    "opaque": "changes an external system at most once; if a crash hides the outcome, a person settles it",
}
"""Descriptions of the effect classes."""
RETRY_DESCRIPTIONS = {
    "until_back": "retried until it succeeds",
    "provider": "provider errors are counted, and the wait that a provider asks for is respected",
    "tool": "retried only as far as the tool's effect class allows",
}
"""Descriptions of the retry classes."""


@agents_router.get("/agents")
async def agents(visit: SignedInVisit) -> HTMLResponse:
    """Lists the agents."""
    listed = await visit.api.agents.list()
    return page(visit, "agents.html", agents=listed.items)


@agents_router.get("/agents/{agent_id}")
async def agent(visit: SignedInVisit, agent_id: str) -> HTMLResponse:
    """Shows one agent with its tools."""
    definition, tools = await asyncio.gather(visit.api.agents.get(agent_id), visit.api.agents.tools(agent_id))
    return page(
        visit,
        "agent.html",
        agent=definition,
        definition=definition.model_dump(),
        tools=tools.items,
        not_sent=[
            *unavailable_sentences(definition.unavailable_tools, definition.unreached_tools),
            *unsent_sentences(definition.not_sent),
        ],
        effect_descriptions=EFFECT_DESCRIPTIONS,
        on_length_descriptions=ON_LENGTH_DESCRIPTIONS,
    )


ON_LENGTH_DESCRIPTIONS = {
    "continue": "the model is called again to continue them",
    "truncate": "they are the answer, marked as truncated",
    "fail": "the turn fails",
}
"""Descriptions of the rules for an answer that the output limit has cut."""


topology_router = APIRouter()


@topology_router.get("/topologies/{name}")
async def topology(visit: SignedInVisit, name: str) -> HTMLResponse:
    """Shows a topology from its manifest."""
    manifest = (await visit.api.topologies.get(name)).model_dump()
    graphs = [("", manifest), *((node["id"], node["sub"]) for node in manifest["nodes"] if "sub" in node)]
    pictures = [
        (parent_node, graph, draw_graph(graph, id_prefix=f"graph-{index}"))
        for index, (parent_node, graph) in enumerate(graphs)
    ]
    return page(visit, "topology.html", manifest=manifest, pictures=pictures, retry_descriptions=RETRY_DESCRIPTIONS)
