"""An agent of the desk whose topology is `clarify_solve`, and which has no tools: its client has the table."""

from typing import Any

from perdure.contracts.agents import PublishedAgent
from perdure.contracts.values import digest_of
from tests.doubles.target import app_agents

PLANNER = "planner"
CLIENT_TABLE: dict[str, Any] = {
    "name": "t",
    "rows": 2,
    "columns": [{"name": "a", "kind": "nominal", "distinct": 2, "nulls": 0}],
}


def planner() -> PublishedAgent:
    agent = next(agent for _, agent in app_agents()[0] if agent.definition.id == "desk")
    own = {"id": PLANNER, "topology": "clarify_solve", "tools": (), "skills": (), "memory": None}
    definition = agent.definition.model_copy(update=own)
    version = digest_of(definition.model_dump(mode="json"))
    return agent.model_copy(update={"definition": definition, "cards": (), "version": version})
