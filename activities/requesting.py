"""The request of a model call: what the agent, its stage and its turn's budget make of the messages."""

from collections.abc import Sequence
from dataclasses import replace

from pydantic import JsonValue

from activities.clients.provider import Provider, ProviderRequest
from activities.models import Models
from contracts.agents import PublishedAgent
from contracts.model import ModelCall, OutputForm
from contracts.turns import Usage
from policy.agent_stages import with_stage
from policy.budget import PRICED_TOKENS, affordable
from policy.prompt import WireMessage
from policy.toolsets import LOAD_TOOLSET, load_card
from store.model_calls import ModelClaim

MODEL_SECONDS = 120.0
"""A provider's time for one answer, where the graph does not name another."""


def request_of(
    models: Models,
    provider: Provider,
    call: ModelCall,
    agent: PublishedAgent,
    claimed: ModelClaim,
    messages: Sequence[WireMessage],
) -> ProviderRequest:
    """What the provider is sent; its answer is broken off where the turn can pay for no more of it."""
    request = ProviderRequest(
        model=claimed.model,
        messages=tuple(messages),
        tools=_tools(call, agent),
        params=with_stage(models.params(agent), agent.definition.stages, call.ask.stage),
        output=call.ask.output,
        reasoning=agent.definition.reasoning,
        timeout_seconds=call.ask.timeout_seconds or MODEL_SECONDS,
        idempotency_key=f"{call.address.turn_id}.{call.call_id}",
    )
    many = provider.cost_microusd(claimed.model, Usage(output_tokens=PRICED_TOKENS))
    return replace(request, most_tokens=affordable(claimed.most_tokens, claimed.left_microusd, many))


def _tools(call: ModelCall, agent: PublishedAgent) -> tuple[dict[str, JsonValue], ...]:
    """The functions that the model may call: those offered, or the one by which it is to answer."""
    wanted = call.ask.output
    if wanted is not None:
        told = "Give your answer by calling this once."
        return (_function(wanted.name, told, wanted.fits),) if wanted.form is OutputForm.FUNCTION else ()
    offered = [card for card in agent.cards if card.name in call.ask.tools]
    if LOAD_TOOLSET in call.ask.tools:
        offered.insert(0, load_card(agent.cards))
    return tuple(_function(card.name, card.description, card.parameters) for card in offered)


def _function(name: str, description: str, parameters: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
