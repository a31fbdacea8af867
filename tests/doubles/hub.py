"""An agent of the desk whose topology is `decision_hub`, and which may keep facts; and a memory that is broken."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from perdure.contracts.agents import MemoryPolicy, PublishedAgent
from perdure.contracts.memory import FactScope
from perdure.contracts.values import digest_of
from tests.doubles.target import app_agents
from tests.harness import Harness

KEEPER = "keeper"


def keeper(agent_id: str = KEEPER, **changed: Any) -> PublishedAgent:
    agent = next(agent for _, agent in app_agents()[0] if agent.definition.id == "desk")
    own: dict[str, Any] = {
        "id": agent_id,
        "topology": "decision_hub",
        "tools": (),
        "skills": (),
        "memory": MemoryPolicy(facts=(FactScope.CONVERSATION, FactScope.USER)),
        **changed,
    }
    definition = agent.definition.model_copy(update=own)
    version = digest_of(definition.model_dump(mode="json"))
    return agent.model_copy(update={"definition": definition, "cards": (), "version": version})


@asynccontextmanager
async def without(harness: Harness, table: str) -> AsyncIterator[None]:
    """Memory is broken: one of its tables is not there."""
    owner = await asyncpg.connect(harness.owner_url, server_settings={"search_path": "perdure"})
    try:
        await owner.execute(f"ALTER TABLE {table} RENAME TO {table}_gone")
        yield
        await owner.execute(f"ALTER TABLE {table}_gone RENAME TO {table}")
    finally:
        await owner.close()
