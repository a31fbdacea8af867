"""What asks a model to think, as it goes over the wire, in both vendors' forms."""

from contextlib import aclosing
from typing import Any

import pytest
from pydantic import JsonValue

from activities.clients.provider import Provider, ProviderRequest
from activities.clients.script import Script
from contracts.agents import Reasoning
from policy.reasoning import LEAST_CAP_TOKENS
from tests.doubles.playing import PlayingDouble

pytestmark = [
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince211"),
]
CLAUDE, OPENAI = "anthropic/claude-sonnet-4-5", "openai/o3-mini"


async def sent(provider: Provider, model: str, reasoning: Reasoning | None, **params: Any) -> dict[str, JsonValue]:
    """The body of the one request that is made."""
    with PlayingDouble(Script(fallback="Yes.")) as double:
        base = double.root if model == CLAUDE else double.api_base
        where = {"api_base": base, "api_key": "k", **params}
        messages: tuple[dict[str, JsonValue], ...] = ({"role": "user", "content": "hello"},)
        asked = ProviderRequest(model, messages, params=where, timeout_seconds=10, reasoning=reasoning)
        async with aclosing(provider.stream(asked)) as chunks:
            async for _ in chunks:
                pass
        (seen,) = double.requests
        return seen.body


async def test_a_budget_and_its_cap_reach_anthropic(litellm_provider: Provider) -> None:
    body = await sent(litellm_provider, CLAUDE, Reasoning(budget_tokens=4_000))
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 4_000}
    assert body["max_tokens"] == LEAST_CAP_TOKENS


async def test_an_effort_reaches_anthropic_as_thinking(litellm_provider: Provider) -> None:
    body = await sent(litellm_provider, CLAUDE, Reasoning(effort="low"))
    thinking: Any = body["thinking"]
    assert thinking["type"] == "enabled" and thinking["budget_tokens"] >= 1_024


async def test_a_model_that_can_think_is_asked_for_much_where_nothing_is_said(litellm_provider: Provider) -> None:
    assert (await sent(litellm_provider, OPENAI, Reasoning()))["reasoning_effort"] == "high"
    assert "reasoning_effort" not in await sent(litellm_provider, OPENAI, None)
    assert "reasoning_effort" not in await sent(litellm_provider, "openai/gpt-4o-mini", Reasoning())


async def test_a_budget_is_an_effort_and_a_cap_where_the_vendor_counts_no_thinking(litellm_provider: Provider) -> None:
    body = await sent(litellm_provider, OPENAI, Reasoning(budget_tokens=4_000))
    assert body["reasoning_effort"] == "medium"
    assert LEAST_CAP_TOKENS in (body.get("max_tokens"), body.get("max_completion_tokens"))
