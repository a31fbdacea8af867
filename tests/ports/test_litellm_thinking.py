"""What asks a model to think, as it goes over the wire, in both vendors' forms."""

from contextlib import aclosing
from typing import Any

import pytest
from pydantic import JsonValue

from perdure.activities.providers.provider import Complete, Provider, ProviderRequest
from perdure.activities.providers.scripted import Script
from perdure.contracts.agents import Reasoning
from perdure.contracts.turns import Usage
from perdure.core.agents.models import LEAST_CAP_TOKENS
from tests.doubles.playing import PlayingDouble
from tests.doubles.provider import Seen
from tests.doubles.provider_steps import Step

pytestmark = [
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince211"),
]
CLAUDE, OPENAI = "anthropic/claude-sonnet-4-5", "openai/o3-mini"


class Caching(PlayingDouble):
    """Says that it has written most of the request to a cache, and read some of it from there."""

    async def _step(self, seen: Seen) -> Step:
        usage: dict[str, JsonValue] = {"prompt_tokens": 100, "completion_tokens": 10}
        cache: dict[str, JsonValue] = {"cache_creation_input_tokens": 2_000, "cache_read_input_tokens": 1_000}
        return (await super()._step(seen)).model_copy(update={"usage": {**usage, **cache}})


async def test_what_anthropic_writes_to_its_cache_and_reads_from_it_is_counted_and_priced(
    litellm_provider: Provider,
) -> None:
    with Caching(Script(fallback="Yes.")) as double:
        asked = ProviderRequest(
            CLAUDE, ({"role": "user", "content": "hello"},), params={"api_base": double.root, "api_key": "k"}
        )
        async with aclosing(litellm_provider.stream(asked)) as chunks:
            *_, complete = [chunk async for chunk in chunks]
    assert isinstance(complete, Complete)
    # 100 at 3, 2,000 written at 3.75, 1,000 read at 0.30 and 10 at 15 dollars a million.
    assert complete.usage == Usage(input_tokens=3_100, output_tokens=10, cached_tokens=1_000, cost_microusd=8_250)


async def sent(provider: Provider, model: str, reasoning: Reasoning | None, **params: Any) -> dict[str, JsonValue]:
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
