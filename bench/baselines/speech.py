"""One model call of the hand-written stacks: streamed, with live tokens sent and tool calls checked."""

import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from perdure.activities.model import TokenPublisher
from perdure.activities.model_answer import CallPlan, plan_calls
from perdure.activities.providers.provider import Complete, Provider, ProviderRequest, TextDelta
from perdure.contracts.agents import PublishedAgent
from perdure.contracts.calls import ModelCall, ModelCallRequest
from perdure.contracts.errors import InvariantBroken
from perdure.contracts.ids import model_call_id
from perdure.contracts.turns import TurnAddress, Usage
from perdure.core.agents.prompts import WireMessage
from perdure.core.agents.skills import LOAD_SKILL, cards_of_request
from perdure.core.agents.tool_rules import tool_function
from perdure.store.events.live import LiveTokens


@dataclass(frozen=True, slots=True)
class ModelReply:
    """The model's answer."""

    call_id: str
    text: str
    usage: Usage
    planned: Sequence[CallPlan]
    first_token_seconds: float


async def call_model(
    provider: Provider,
    live: LiveTokens,
    address: TurnAddress,
    agent: PublishedAgent,
    step: int,
    messages: Sequence[WireMessage],
) -> ModelReply:
    """Calls the model and streams its text to the readers."""
    call_id = model_call_id(step)
    tools = _offered(agent)
    request = _request(agent, messages)
    words: list[str] = []
    first_token_seconds = 0.0
    complete: Complete | None = None
    requested_at = time.monotonic()
    async with TokenPublisher(live, address, call_id, 1) as publisher, aclosing(provider.stream(request)) as chunks:
        async for chunk in chunks:
            if isinstance(chunk, TextDelta):
                first_token_seconds = first_token_seconds or time.monotonic() - requested_at
                words.append(chunk.text)
                await publisher.publish_text(chunk.text)
            elif isinstance(chunk, Complete):
                complete = chunk
    if complete is None:
        raise InvariantBroken("model_cut_off", "the scripted model ended without its last chunk")
    model_call = ModelCall(
        address=address,
        call_id=call_id,
        agent_id=agent.definition.id,
        agent_version=agent.version,
        ask=ModelCallRequest(messages=(), tools=tools),
    )
    planned = plan_calls(model_call, agent, complete.tool_calls, tools).calls
    return ModelReply(call_id, "".join(words), complete.usage, planned, first_token_seconds)


def _request(agent: PublishedAgent, messages: Sequence[WireMessage]) -> ProviderRequest:
    return ProviderRequest(
        model=agent.definition.model,
        messages=tuple(messages),
        tools=tuple(map(tool_function, cards_of_request(agent, _offered(agent), {}))),
    )


def _offered(agent: PublishedAgent) -> tuple[str, ...]:
    return (LOAD_SKILL, *(card.name for card in agent.cards))
