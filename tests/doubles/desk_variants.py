"""The agent `desk` in other topologies: one with facts, one with a client's table, one with a context."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from perdure.contracts.agents import MemoryPolicy, PublishedAgent
from perdure.contracts.context_assembly import ContextAssembly, PipelineToolConfig
from perdure.contracts.memory import FactScope
from perdure.contracts.values import digest_of
from tests.conftest import as_owner
from tests.doubles.message_script import Line
from tests.doubles.target import app_agents
from tests.harness import Harness, publish_app

KEEPER, PLANNER = "keeper", "planner"
COLUMN = {"name": "a", "kind": "nominal", "distinct": 2, "nulls": 0}
CLIENT_TABLE: dict[str, Any] = {"name": "t", "rows": 2, "columns": [COLUMN]}


def keeper(agent_id: str = KEEPER, **changed: Any) -> PublishedAgent:
    memory = MemoryPolicy(facts=(FactScope.CONVERSATION, FactScope.USER))
    own: dict[str, Any] = {"id": agent_id, "topology": "decision_hub", "tools": (), "skills": (), "memory": memory}
    return as_desk(**{**own, **changed}).model_copy(update={"cards": ()})


def planner() -> PublishedAgent:
    """One whose topology is `clarify_solve`, and which has no tools: its client has the table."""
    own: dict[str, Any] = {"id": PLANNER, "topology": "clarify_solve", "tools": (), "skills": (), "memory": None}
    return as_desk(**own).model_copy(update={"cards": ()})


def gatherer(**changed: Any) -> PublishedAgent:
    """The agent in `context_assembly`, with one optional tool of the context, which `desk` already has."""
    registry = (PipelineToolConfig(name="look", optional=True),)
    said: dict[str, Any] = {"intents": ("ask",), "default_intent": "ask", "intervention": "Talk to somebody."}
    return as_desk(
        topology="context_assembly", assembly=ContextAssembly(pipeline="p", registry=registry, **said), **changed
    )


CALM = tuple(
    Line("", [verdict])
    for verdict in (
        ("safety_verdict", {"hijacked": False}),
        ("intent_verdict", {"intent": "ask"}),
        ("empathy_verdict", {"tone": "calm"}),
    )
)
"""What the model says to the questions of `context_assembly`, so that the turn goes on."""


@asynccontextmanager
async def published(harness: Harness, desk: PublishedAgent) -> AsyncIterator[None]:
    """The test app has this agent in place of `desk`."""
    agents = app_agents()[0]
    await publish_app(
        harness.owner_url, [*(each for each in agents if each[1].definition.id != "desk"), ("desk", desk)]
    )
    try:
        yield
    finally:
        await publish_app(harness.owner_url, agents)


def as_desk(**changed: Any) -> PublishedAgent:
    """The agent `desk` with these fields of its definition changed."""
    return changed_agent(agent_of("desk"), **changed)


def agent_of(agent_id: str) -> PublishedAgent:
    return next(agent for _, agent in app_agents()[0] if agent.definition.id == agent_id)


def changed_agent(agent: PublishedAgent, **changed: Any) -> PublishedAgent:
    definition = agent.definition.model_copy(update=changed)
    return agent.model_copy(update={"definition": definition, "version": digest_of(definition.model_dump(mode="json"))})


@asynccontextmanager
async def without(harness: Harness, table: str) -> AsyncIterator[None]:
    """Memory is broken: one of its tables is not there."""
    async with as_owner(harness.owner_url) as owner:
        await owner.execute(f"ALTER TABLE {table} RENAME TO {table}_gone")
        yield
        await owner.execute(f"ALTER TABLE {table}_gone RENAME TO {table}")
