"""Odd answers that are answers all the same: what LiteLLM hands on is whole, storable, counted and priced."""

import asyncio
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import JsonValue
from structlog.testing import capture_logs

from perdure.activities.providers.provider import (
    REFUSAL_TEXT,
    Chunk,
    Complete,
    Draft,
    DraftCall,
    Provider,
    ProviderRequest,
    TextDelta,
    ThinkingDelta,
)
from perdure.activities.providers.scripted import Script
from perdure.contracts.agents import Reasoning
from perdure.contracts.errors import UpstreamUnavailable
from perdure.contracts.turns import Usage
from perdure.core.agents.models import MIN_CAP_TOKENS
from tests.doubles.listener import UNWARNED, Listener
from tests.doubles.playing import PlayingDouble
from tests.doubles.provider import ProviderDouble, Seen
from tests.doubles.provider_steps import CONTENT_POLICY, Call, Fault, Step

pytestmark = UNWARNED


HALF = Call(name="pay", arguments='{"amount": 1')


@pytest.mark.parametrize("step", [CONTENT_POLICY, Step(calls=(Call(name="pay"),), finish_reason="content_filter")])
async def test_a_refusal_for_content_is_an_answer_that_leaves_no_calls(listener: Listener, step: Step) -> None:
    await listener.ask(step)
    assert (listener.text, listener.complete.tool_calls) == (REFUSAL_TEXT, ())
    assert listener.complete.finish_reason == "content_filter"
    assert step is not CONTENT_POLICY or listener.complete.usage == Usage(), "an error status costs nothing"


@pytest.mark.parametrize(
    ("step", "text", "reason", "truncated"),
    [
        (Step(refusal="I will not say."), "I will not say.", "refusal", False),
        (Step(text="And then", finish_reason="length"), "And then", "length", True),
        (Step(text="And", calls=(HALF,), finish_reason="length"), "And", "length", True),
        (Step(calls=(HALF,), finish_reason="length"), "", "length", True),
        (Step(text="And then", finish_reason="content_filter"), "And then", "content_filter", True),
        (Step(finish_reason="content_filter"), REFUSAL_TEXT, "content_filter", False),
        (Step(calls=(Call(name="look_up", arguments={"a": 1}),), finish_reason="stop"), "", "tool_calls", False),
    ],
)
async def test_refusals_cut_texts_and_calls_are_answers(
    listener: Listener, step: Step, text: str, reason: str, truncated: bool
) -> None:
    await listener.ask(step)
    assert (listener.text, listener.complete.finish_reason) == (text, reason)
    assert listener.complete.truncated is truncated
    assert bool(listener.complete.tool_calls) is (reason == "tool_calls"), "half a call is none"


ROUTES = ("openai/m", "mistral/m", "deepseek/m", "hosted_vllm/m", "openrouter/a/m", "groq/m", "together_ai/m", "xai/m")


@pytest.mark.parametrize("model", ROUTES)
async def test_no_route_makes_a_cut_or_broken_answer_whole(listener: Listener, model: str) -> None:
    await listener.ask(Step(text="And then", finish_reason="model_length"), model=model)
    assert (listener.complete.finish_reason, listener.complete.truncated) == ("length", True)
    for reason in ("error", "meltdown"):
        with pytest.raises(UpstreamUnavailable) as raised:
            await listener.ask(Step(text="And then", finish_reason=reason), model=model)
        assert raised.value.code == "model_unreadable"


@pytest.mark.parametrize(
    "calls",
    [
        (Call(name="a", id="same"), Call(name="b", id="same"), Call(name="c", id="same")),
        (Call(name="a", id=""), Call(name="b", id=""), Call(name="c", id="call_1")),
        (Call(name="a", id="x", index=0), Call(name="b", id="y", index=0), Call(name="c", id="z", index=0)),
        (Call(name="a", index=7), Call(name="b", index=3), Call(name="c", index=5)),
    ],
    ids=["repeated ids", "missing ids", "one index for all", "indices out of order"],
)
async def test_odd_ids_and_indices_lose_no_call(listener: Listener, calls: tuple[Call, ...]) -> None:
    await listener.ask(Step(calls=calls))
    drafts = listener.complete.tool_calls
    assert [(draft.name, draft.raw_arguments) for draft in drafts] == [("a", "{}"), ("b", "{}"), ("c", "{}")]
    assert len({draft.provider_id for draft in drafts} - {""}) == 3


async def test_reasoning_is_separated_from_text_and_broken_arguments_are_passed_on(listener: Listener) -> None:
    broken = Call(name="a", arguments="{'x': 1,", id="i")
    await listener.ask(Step(thinking="Let me see.", text="Yes.", calls=(broken,)))
    thought = "".join(chunk.text for chunk in listener.chunks if isinstance(chunk, ThinkingDelta))
    assert (thought, listener.text) == ("Let me see.", "Yes.")
    assert listener.complete.tool_calls == (DraftCall("i", "a", "{'x': 1,"),)


@pytest.mark.parametrize(
    ("step", "requests"),
    [
        (Step(text="Yes.", whole=True, calls=(Call(name="a", id="i"), Call(name="b", id="j"))), 1),
        (Step(text="Yes.", refuses=("stream_options",), calls=(Call(name="a", id="i"), Call(name="b", id="j"))), 2),
        (Step(text="Yes.", refuses=("stream",), calls=(Call(name="a", id="i"), Call(name="b", id="j"))), 2),
    ],
    ids=["ignores stream", "refuses its options", "refuses it"],
)
async def test_a_server_that_does_not_stream_is_read(listener: Listener, step: Step, requests: int) -> None:
    await listener.ask(step)
    assert (listener.text, len(listener.double.requests)) == ("Yes.", requests)
    assert listener.complete.tool_calls == (DraftCall("i", "a", "{}"), DraftCall("j", "b", "{}"))


async def test_halves_parts_and_tags_are_text_and_reasoning(listener: Listener) -> None:
    contents: list[JsonValue] = ["<thi", "nk>Hm.</think>", [{"type": "text", "text": "hi \ud83d"}], "\ude00"]
    await listener.ask(Step(deltas=tuple({"content": each} for each in contents)))
    thought = "".join(chunk.text for chunk in listener.chunks if isinstance(chunk, ThinkingDelta))
    assert (thought, listener.text) == ("Hm.", "hi \U0001f600")
    error = await listener.fail(Step(text=" \n "))
    assert error.code == "model_empty_answer" and error.retryable


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        *((Step(text=" \n "), "stop"), (Step(), "stop"), (CONTENT_POLICY, "content_filter")),
        *((Step(finish_reason=reason), reason) for reason in ("length", "content_filter")),
    ],
)
async def test_a_continuation_can_add_nothing(listener: Listener, step: Step, reason: str) -> None:
    await listener.ask(step, continues=True)
    assert [type(chunk) for chunk in listener.chunks] == [Complete]
    assert (listener.complete.finish_reason, listener.complete.truncated) == (reason, reason != "stop")


async def test_line_ends_of_unicode_end_no_line_on_any_wire(litellm_provider: Provider) -> None:
    words = "one\u2028 two\u0085 three\u2029 four"
    with PlayingDouble(Script(fallback=words)) as double:
        for model in (CLAUDE, OPENAI):
            where = {"api_base": double.root if model == CLAUDE else double.api_base, "api_key": "k"}
            async with aclosing(litellm_provider.stream(ProviderRequest(model, HELLO, params=where))) as chunks:
                assert "".join([chunk.text async for chunk in chunks if isinstance(chunk, TextDelta)]) == words
        assert len(double.requests) == 2


async def test_text_that_postgres_cannot_store_is_repaired(listener: Listener) -> None:
    await listener.ask(Step(fault=Fault.LONE_SURROGATES))
    assert listener.text == "half a \ufffd face and a \ufffd."
    listener.text.encode()


async def test_reported_usage_is_priced_with_its_cached_tokens(listener: Listener) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}
    await listener.ask(Step(text="hi", usage={**usage, "prompt_tokens_details": {"cached_tokens": 60}}))
    # 40 at 0.15, 60 cached at 0.075 and 5 at 0.60 dollars a million are 13.5 micro-dollars.
    assert listener.complete.usage == Usage(input_tokens=100, output_tokens=5, cached_tokens=60, cost_microusd=14)


@pytest.mark.parametrize(
    "usage",
    [{}, {"prompt_tokens": -5, "completion_tokens": "many"}, {"prompt_tokens": 10**12, "completion_tokens": None}],
    ids=["missing", "nonsense", "absurd"],
)
async def test_impossible_usage_is_estimated_and_the_answer_is_kept(listener: Listener, usage: Any) -> None:
    await listener.ask(Step(text="hello to you all", usage=usage))
    counted = listener.complete.usage
    assert listener.text == "hello to you all" and len(listener.double.requests) == 1
    assert 0 < counted.input_tokens < 100 and 0 < counted.output_tokens < 100 and 0 < counted.cost_microusd < 1000


async def test_a_model_without_a_price_costs_nothing_and_is_flagged_once(listener: Listener) -> None:
    with capture_logs() as lines:
        for _ in range(3):
            await listener.ask(Step(text="hi"), model="openai/made-in-the-shed")
    assert listener.complete.usage.cost_microusd == 0 and listener.complete.usage.output_tokens > 0
    assert [line["model"] for line in lines if line["event"] == "model_without_price"] == ["openai/made-in-the-shed"]


async def test_the_idempotency_key_and_the_credentials_are_sent(listener: Listener) -> None:
    await listener.ask(Step(text="hi"), temperature=0.2, extra_headers={"X-Team": "blue"})
    (seen,) = listener.double.requests
    assert seen.idempotency_key == "turn-1.m1" and seen.authorized and seen.body["temperature"] == 0.2


async def test_simultaneous_calls_do_not_mix(litellm_provider: Provider, provider_double: ProviderDouble) -> None:
    provider_double.script(*(Step(match=f"^{n}$", text=f"{n} " * 20, token_seconds=0.005) for n in range(8)))

    async def ask(number: int) -> str:
        params = {"api_base": provider_double.api_base, "api_key": "k"}
        request = ProviderRequest("openai/gpt-4o-mini", ({"role": "user", "content": str(number)},), (), params)
        return "".join([chunk.text async for chunk in litellm_provider.stream(request) if isinstance(chunk, TextDelta)])

    assert await asyncio.gather(*map(ask, range(8))) == [f"{n} " * 20 for n in range(8)]


async def test_other_calls_run_between_chunks_that_have_all_arrived() -> None:
    from perdure.activities.providers.litellm_provider import _CheckedStream

    class Arrived:
        def __aiter__(self) -> "Arrived":
            return self

        async def __anext__(self) -> Any:
            return SimpleNamespace(choices=())

    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    beating = asyncio.create_task(beat())
    chunks = _CheckedStream(Arrived(), Draft())
    for _ in range(100):
        await anext(chunks)
    beating.cancel()
    assert beats >= 99


CLAUDE, OPENAI = "anthropic/claude-sonnet-4-5", "openai/o3-mini"
HELLO: tuple[dict[str, JsonValue], ...] = ({"role": "user", "content": "hello"},)


class Caching(PlayingDouble):
    """Says that it has written most of the request to a cache, and read some of it from there."""

    async def _step(self, seen: Seen) -> Step:
        usage: dict[str, JsonValue] = {"prompt_tokens": 100, "completion_tokens": 10}
        cache: dict[str, JsonValue] = {"cache_creation_input_tokens": 2_000, "cache_read_input_tokens": 1_000}
        return (await super()._step(seen)).model_copy(update={"usage": {**usage, **cache}})


async def test_tokens_that_anthropic_caches_and_reads_are_counted_and_priced(litellm_provider: Provider) -> None:
    with Caching(Script(fallback="Yes.")) as double:
        _, complete = await sent(litellm_provider, double, CLAUDE)
    assert isinstance(complete, Complete)
    # 100 at 3, 2,000 written at 3.75, 1,000 read at 0.30 and 10 at 15 dollars a million.
    assert complete.usage == Usage(input_tokens=3_100, output_tokens=10, cached_tokens=1_000, cost_microusd=8_250)


async def sent(
    provider: Provider, double: PlayingDouble, model: str, reasoning: Reasoning | None = None
) -> tuple[dict[str, JsonValue], Chunk]:
    """The body of the request that is made, and the end of its answer."""
    where = {"api_base": double.root if model == CLAUDE else double.api_base, "api_key": "k"}
    asked = ProviderRequest(model, HELLO, params=where, timeout_seconds=10, reasoning=reasoning)
    async with aclosing(provider.stream(asked)) as chunks:
        *_, last = [chunk async for chunk in chunks]
    return double.requests[-1].body, last


async def test_a_thinking_budget_and_an_effort_reach_each_vendor_in_its_parameters(litellm_provider: Provider) -> None:
    with PlayingDouble(Script(fallback="Yes.")) as double:

        async def body(model: str, reasoning: Reasoning | None) -> dict[str, Any]:
            return (await sent(litellm_provider, double, model, reasoning))[0]

        budget = await body(CLAUDE, Reasoning(budget_tokens=4_000))
        assert budget["thinking"] == {"type": "enabled", "budget_tokens": 4_000}
        assert budget["max_tokens"] == MIN_CAP_TOKENS
        thinking = (await body(CLAUDE, Reasoning(effort="low")))["thinking"]
        assert thinking["type"] == "enabled" and thinking["budget_tokens"] >= 1_024
        assert (await body(OPENAI, Reasoning()))["reasoning_effort"] == "high", "where nothing is said"
        assert "reasoning_effort" not in await body(OPENAI, None)
        assert "reasoning_effort" not in await body("openai/gpt-4o-mini", Reasoning()), "it cannot think"
        asked = await body(OPENAI, Reasoning(budget_tokens=4_000))
        assert asked["reasoning_effort"] == "medium", "the vendor counts no thinking"
        assert MIN_CAP_TOKENS in (asked.get("max_tokens"), asked.get("max_completion_tokens"))
