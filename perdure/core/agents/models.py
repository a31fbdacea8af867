"""Whose model a name means, as far as anything is sent differently to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from perdure.contracts.agents import AgentDefinition, AgentStage, Reasoning
from perdure.contracts.messages import WindowPolicy

_CLOUDS: Final = ("bedrock/", "vertex_ai/")


def is_claude(model: str) -> bool:
    """Whether a LiteLLM name is a Claude at Anthropic's own or at a cloud that serves it natively (S2-26).

    A router that speaks for many vendors is none of these, whatever it names.
    """
    return model.startswith("anthropic/") or (model.startswith(_CLOUDS) and "claude" in model)


def takes_thinking_budget(model: str) -> bool:
    """Whether its API counts thinking in tokens; the others know levels of effort only."""
    return is_claude(model) or model.startswith("gemini/") or (model.startswith("vertex_ai/") and "gemini" in model)


# --- How much a model may think: which of an agent's settings decides, and what is sent for it (S2-30, S2-31).
# An explicit budget, else an explicit effort, else `high` where the model can think, else nothing. An explicit setting
# is sent as its author wrote it, whatever any table says of the model.

LEAST_CAP_TOKENS: Final = 16_384
"""Of an answer that may think by a budget and names no limit of its own; else twice the budget (S2-31)."""
_LEVELS: Final = ((2_048, "low"), (8_192, "medium"))
"""A budget up to so many tokens, for models that know levels only; beyond them `high`."""
_CAPS: Final = ("max_tokens", "max_completion_tokens")


@dataclass(frozen=True, slots=True)
class Thinking:
    """What decided."""

    budget_tokens: int | None = None
    effort: str = ""


def decided(asked: Reasoning | None, *, can_think: bool) -> Thinking:
    """The setting that counts; neither field where nothing is sent."""
    if asked is None or (asked.budget_tokens is None and asked.effort is None):
        return Thinking(effort="high" if asked is not None and can_think else "")
    if asked.budget_tokens is not None:
        return Thinking(budget_tokens=asked.budget_tokens)
    return Thinking(effort=asked.effort if asked.effort and asked.effort != "none" else "")


def is_ambiguous(asked: Reasoning | None) -> bool:
    """Whether both are set, so that somebody should be told which one counts."""
    return asked is not None and asked.budget_tokens is not None and asked.effort is not None


def with_thinking(
    model: str,
    params: Mapping[str, JsonValue],
    messages: Sequence[Mapping[str, JsonValue]],
    asked: Reasoning | None,
    *,
    can_think: bool,
) -> dict[str, JsonValue]:
    """The parameters of a request, with what asks for thinking; the agent's own parameters stand over it."""
    thinking = decided(asked, can_think=can_think)
    if not (thinking.budget_tokens or thinking.effort) or _must_not_think(model, messages):
        return dict(params)
    if thinking.budget_tokens is None:
        return {"reasoning_effort": thinking.effort, **params}
    sent: dict[str, JsonValue] = {"reasoning_effort": _level(thinking.budget_tokens)}
    if takes_thinking_budget(model):
        sent = {"thinking": {"type": "enabled", "budget_tokens": thinking.budget_tokens}}
    if not any(name in params for name in _CAPS):
        sent["max_tokens"] = max(2 * thinking.budget_tokens, LEAST_CAP_TOKENS)
    return {**sent, **params}


def _level(budget_tokens: int) -> str:
    return next((level for most, level in _LEVELS if budget_tokens <= most), "high")


def _must_not_think(model: str, messages: Sequence[Mapping[str, JsonValue]]) -> bool:
    """Within a round of calls Anthropic refuses a request that thinks, unless it is given the thinking from before the
    round back with its signature. That is not kept, so thinking is asked for where the user has spoken last."""
    if not is_claude(model):
        return False
    for message in reversed(messages):
        if message.get("role") == "user":
            return False
        if message.get("tool_calls"):
            return True
    return False


# --- What a stage of an agent changes of a model call: its parameters, its window, its instructions (S4-52, S4-54).


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
