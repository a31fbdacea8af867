"""What a stage of an agent changes of a model call: its parameters, its window, its instructions (S4-52, S4-54)."""

from collections.abc import Mapping

from pydantic import JsonValue

from contracts.agents import AgentDefinition, AgentStage
from contracts.messages import WindowPolicy


def with_stage(
    defaults: Mapping[str, JsonValue], stages: Mapping[str, AgentStage], name: str
) -> Mapping[str, JsonValue]:
    """The agent's parameters, then those of the stages that this one is like, farthest first, then its own. Null takes
    a parameter away. A circle of likenesses ends where it closes."""
    if name not in stages:
        return defaults
    chain: list[AgentStage] = []
    seen: set[str] = set()
    while name in stages and name not in seen:
        seen.add(name)
        chain.append(stages[name])
        name = stages[name].like
    merged = dict(defaults)
    for stage in reversed(chain):
        for key, value in stage.model_params.items():
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = value
    return merged


def window_of(agent: AgentDefinition, stage: str) -> WindowPolicy:
    """How much of the past a call of this stage sees."""
    own = agent.stages[stage].window if stage in agent.stages else None
    return own or agent.window


def instructions_of(agent: AgentDefinition, stage: str) -> str:
    """What the model is told for this stage; empty where there is none."""
    return agent.stages[stage].prompt if stage in agent.stages else ""


def stands_alone(agent: AgentDefinition, stage: str) -> bool:
    """Whether the stage's instructions are all that comes before what was said."""
    return stage in agent.stages and agent.stages[stage].alone
