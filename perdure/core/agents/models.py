"""Requests by model family: thinking budgets and portable parameters; and the settings of an agent's stages."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from perdure.contracts.agents import AgentDefinition, AgentStage, Reasoning
from perdure.contracts.messages import WindowPolicy

_CLOUDS: Final = ("bedrock/", "vertex_ai/")
BEDROCK: Final = ("bedrock/", "bedrock_converse/")
_MISTRAL: Final = re.compile(r"mistral|mixtral|magistral|ministral|codestral|devstral|pixtral|voxtral")
MIN_CAP_TOKENS: Final = 16_384
"""Minimum answer limit in tokens of a request with a thinking budget, if the agent sets no limit. The limit is twice
the budget if that is more."""
_LEVELS: Final = ((2_048, "low"), (8_192, "medium"))
"""Largest budget in tokens of each level, for models that know only levels. A larger budget is `high`."""
_CAPS: Final = ("max_tokens", "max_completion_tokens")
PORTABLE: Final = frozenset(
    {
        "temperature",
        "top_p",
        "max_tokens",
        "max_completion_tokens",
        "stop",
        "seed",
        "frequency_penalty",
        "presence_penalty",
        "reasoning_effort",
        "parallel_tool_calls",
        "tool_choice",
        "drop_params",
    }
)
"""Parameters with the same meaning for every provider. All others, such as addresses, keys, API versions and headers,
belong to one provider."""
RESERVED_PARAMETERS = frozenset(
    {
        "client",
        "shared_session",
        "ssl_verify",
        "model",
        "messages",
        "tools",
        "stream",
        "stream_options",
        "timeout",
        "num_retries",
        "max_retries",
        "fallbacks",
    }
)
"""Parameters that agents must not set. They would add a second layer of retries, change the form of the response, or
bypass the egress rules."""
_BARE_NAMES: Final = (
    ("openai", ("gpt-", "chatgpt-", "o1", "o3", "o4")),
    ("anthropic", ("claude",)),
    ("gemini", ("gemini",)),
)


def is_claude(model: str) -> bool:
    """Returns whether a LiteLLM name is a Claude model at Anthropic or at a cloud that serves it natively.

    A router for many vendors does not count, whatever model it names.
    """
    return model.startswith("anthropic/") or (model.startswith(_CLOUDS) and "claude" in model)


def is_gemini(model: str) -> bool:
    """Returns whether a LiteLLM name is a Gemini model at one of Google's own APIs."""
    return model.startswith("gemini/") or (model.startswith("vertex_ai/") and "gemini" in model)


def is_mistral(model: str) -> bool:
    """Returns whether a LiteLLM name is a model of Mistral, whose rules follow it to each host but Bedrock, which has
    its own."""
    return not model.startswith(BEDROCK) and _MISTRAL.search(model.lower()) is not None


def takes_thinking_budget(model: str) -> bool:
    """Returns whether the model's API counts thinking in tokens. The others know only levels of effort."""
    return is_claude(model) or is_gemini(model)


@dataclass(frozen=True, slots=True)
class ThinkingSetting:
    """The setting that decides; neither field is set if nothing is sent."""

    budget_tokens: int | None = None
    effort: str = ""


def choose_thinking(reasoning: Reasoning | None, *, can_think: bool) -> ThinkingSetting:
    """Returns the setting that decides; neither field is set if nothing is sent. The order is: an explicit budget, an
    explicit effort, `high` if the model can think, nothing. An explicit setting is sent as its author wrote it,
    whatever any table of models contains."""
    if reasoning is None or (reasoning.budget_tokens is None and reasoning.effort is None):
        return ThinkingSetting(effort="high" if reasoning is not None and can_think else "")
    if reasoning.budget_tokens is not None:
        return ThinkingSetting(budget_tokens=reasoning.budget_tokens)
    return ThinkingSetting(effort=reasoning.effort if reasoning.effort and reasoning.effort != "none" else "")


def is_ambiguous(reasoning: Reasoning | None) -> bool:
    """Returns whether both a budget and an effort are set, so that the author needs a warning which one applies."""
    return reasoning is not None and reasoning.budget_tokens is not None and reasoning.effort is not None


def with_thinking(
    model: str,
    params: Mapping[str, JsonValue],
    messages: Sequence[Mapping[str, JsonValue]],
    reasoning: Reasoning | None,
    *,
    can_think: bool,
) -> dict[str, JsonValue]:
    """Returns the parameters of a request including those for thinking. The agent's own parameters take precedence."""
    thinking = choose_thinking(reasoning, can_think=can_think)
    if not (thinking.budget_tokens or thinking.effort) or _must_not_think(model, messages):
        return dict(params)
    if thinking.budget_tokens is None:
        return {"reasoning_effort": thinking.effort, **params}
    merged: dict[str, JsonValue] = {"reasoning_effort": _level_of(thinking.budget_tokens)}
    if takes_thinking_budget(model):
        merged = {"thinking": {"type": "enabled", "budget_tokens": thinking.budget_tokens}}
    if not any(name in params for name in _CAPS):
        merged["max_tokens"] = max(2 * thinking.budget_tokens, MIN_CAP_TOKENS)
    return {**merged, **params}


def _level_of(budget_tokens: int) -> str:
    return next((level for max_tokens, level in _LEVELS if budget_tokens <= max_tokens), "high")


def _must_not_think(model: str, messages: Sequence[Mapping[str, JsonValue]]) -> bool:
    """Returns whether this request must not ask for thinking.

    Within a round of calls, Anthropic rejects a request with thinking if the round does not begin with signed thinking.
    The round has none if an earlier version stored it, or if another model or a request without thinking began it.
    """
    if not is_claude(model):
        return False
    start = round_start([str(message.get("role")) for message in messages])
    first = next((message for message in messages[start:] if message.get("tool_calls")), None)
    return first is not None and not first.get("thinking_blocks")


def round_start(roles: Sequence[str]) -> int:
    """Returns the index of the first message after the latest user message that begins a round. A user message that
    follows results directly belongs to their round: Anthropic receives both as one message."""
    start = 0
    for index in reversed(range(len(roles))):
        if roles[index] == "user":
            start = start or index + 1
        elif roles[index] == "tool":
            start = 0
        elif roles[index] == "assistant" and start:
            return start
    return start


def with_stage(
    defaults: Mapping[str, JsonValue], stages: Mapping[str, AgentStage], name: str
) -> Mapping[str, JsonValue]:
    """Returns the agent's parameters merged with those of the stage.

    The parameters of the stages in its `like` chain come first, the farthest one first, then its own. Null removes a
    parameter. A cycle in the chain ends where it closes.
    """
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


def provider_of(model: str) -> str:
    """Returns the provider in a LiteLLM name. For a name without one: the provider of a known family, else the name."""
    provider, slash, _ = model.partition("/")
    if slash:
        return provider
    return next((name for name, starts in _BARE_NAMES if model.startswith(starts)), model)


def params_of(agent: AgentDefinition, stage: str, *, on_fallback: bool) -> Mapping[str, JsonValue]:
    """Returns the parameters of a call of this stage, for the agent's model or for its fallback model.

    A fallback model receives no parameter that belongs to another provider, above all no address and no key.
    `api_key_secret` among them names a secret.
    """
    if not on_fallback:
        return with_stage(agent.model_params, agent.stages, stage)
    if agent.fallback is None:
        params = with_stage(agent.model_params, agent.stages, stage)
        is_same = provider_of(agent.model) == provider_of(agent.fallback_model)
        return params if is_same else _portable(params)
    own = agent.fallback.params
    params = {**_portable(with_stage({}, agent.stages, stage)), **own}
    if agent.fallback.credential:
        params["api_key_secret"] = agent.fallback.credential
    return {name: value for name, value in params.items() if value is not None or name not in own}


_KEYS: Final = ("api_key", "api_key_secret", "api_base", "base_url")


def has_other_key(agent: AgentDefinition, stage: str) -> bool:
    """Returns whether the calls of this stage to the agent's fallback model have another key than those to its own
    model. A key for another provider or address is another one."""
    if provider_of(agent.model) != provider_of(agent.second_model):
        return True
    own, other = (params_of(agent, stage, on_fallback=each) for each in (False, True))
    return any(own.get(name) != other.get(name) for name in _KEYS)


def _portable(params: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    return {name: value for name, value in params.items() if name in PORTABLE}


def window_of(agent: AgentDefinition, stage: str) -> WindowPolicy:
    """Returns how much of the transcript a call of this stage includes."""
    own = agent.stages[stage].window if stage in agent.stages else None
    return own or agent.window


def default_past_tokens(agent: AgentDefinition, stage: str, setting: int, context_tokens: int | None) -> int | None:
    """Returns the maximum tokens of earlier turns in a call of this stage. None if its window sets `max_tokens`, or if
    the operator's `setting` is 0. `context_tokens` is the model's input context, if it is known."""
    if window_of(agent, stage).max_tokens is not None or not setting:
        return None
    return min(setting, context_tokens // 2) if context_tokens else setting


def instructions_of(agent: AgentDefinition, stage: str) -> str:
    """Returns the model's instructions for this stage; empty if there are none."""
    return agent.stages[stage].prompt if stage in agent.stages else ""


def is_sole_instruction(agent: AgentDefinition, stage: str) -> bool:
    """Returns whether the stage's instructions are the only text before the transcript."""
    return stage in agent.stages and agent.stages[stage].alone
