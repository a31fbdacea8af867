"""The persona of an agent that takes it from a prompt template: fixed at the turn's first load (S0-84)."""

from collections.abc import Sequence

from pydantic import JsonValue

from contracts.agents import AgentDefinition, PublishedAgent, TurnPlan
from contracts.events import STAGE
from contracts.turns import TurnAddress
from store.database import Connection
from store.journal import NewEvent
from store.turn_context import Loaded
from store.turn_persona import TurnPersona, fix_persona


async def persona_for(
    tx: Connection, address: TurnAddress, agent: AgentDefinition, loaded: Loaded
) -> tuple[TurnPersona, Sequence[NewEvent]]:
    """What an earlier load of the turn has fixed; else what is fixed now, with the event that tells of it."""
    if loaded.persona is not None:
        return TurnPersona.model_validate(loaded.persona), ()
    root = next((skill.name for skill in agent.skills if skill.id == agent.root_skill), "")
    values = {
        "user_name": loaded.user_name or "user",
        "user_role": loaded.user_role,
        "agent_title": agent.title,
        "skill_name": root,
    }
    persona = await fix_persona(tx, address.turn_id, agent.persona_template, values)
    # Its text stays out of the events: it may be what a person tries out.
    facts: dict[str, JsonValue] = persona.model_dump(mode="json", exclude={"text"}, exclude_defaults=True)
    return persona, [NewEvent(STAGE, {"section": "persona", **facts})]


def with_persona(plan: TurnPlan, persona: TurnPersona) -> TurnPlan:
    """The plan with the template as the persona's key; all else in it is the agent's either way."""
    if not persona.text:
        return plan
    return plan.model_copy(update={"persona_key": persona.template, "persona_source": ""})


def speaking(agent: PublishedAgent, persona: str) -> PublishedAgent:
    """The agent with this persona in the place of its own, for one prompt."""
    if not persona:
        return agent
    definition = agent.definition
    told = {"persona": persona, "persona_key": definition.persona_template}
    return agent.model_copy(update={"definition": definition.model_copy(update=told)})
