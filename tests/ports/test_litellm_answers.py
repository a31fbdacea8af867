"""Odd answers that are answers all the same: what LiteLLM hands on is whole, storable, counted and priced."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from perdure.activities.providers.provider import (
    REFUSAL_TEXT,
    DraftCall,
    Provider,
    ProviderRequest,
    TextDelta,
    ThinkingDelta,
)
from perdure.contracts.turns import Usage
from tests.doubles.listener import Listener
from tests.doubles.provider import ProviderDouble
from tests.doubles.provider_steps import CONTENT_POLICY, Call, Fault, Step

# Warnings inside LiteLLM must not become errors there: it would take them for a broken stream.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince211"),
]


async def test_a_refusal_for_content_is_an_answer_that_costs_nothing(listener: Listener) -> None:
    await listener.ask(CONTENT_POLICY)
    assert listener.text == REFUSAL_TEXT
    assert listener.complete.finish_reason == "content_filter" and listener.complete.usage == Usage()


async def test_a_content_filter_leaves_no_calls_behind(listener: Listener) -> None:
    await listener.ask(Step(calls=(Call(name="pay"),), finish_reason="content_filter"))
    assert listener.text == REFUSAL_TEXT and listener.complete.tool_calls == ()


@pytest.mark.parametrize(
    ("step", "text", "reason"),
    [
        (Step(refusal="I will not say."), "I will not say.", "stop"),
        (Step(text="And then", finish_reason="length"), "And then", "length"),
    ],
)
async def test_a_refusal_in_the_stream_and_a_text_cut_at_the_limit_are_answers(
    listener: Listener, step: Step, text: str, reason: str
) -> None:
    await listener.ask(step)
    assert (listener.text, listener.complete.finish_reason) == (text, reason)


async def test_calls_that_end_with_stop_are_calls(listener: Listener) -> None:
    await listener.ask(Step(calls=(Call(name="look_up", arguments={"a": 1}),), finish_reason="stop"))
    assert listener.complete.finish_reason == "tool_calls"


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


async def test_broken_arguments_are_handed_on_as_they_are(listener: Listener) -> None:
    await listener.ask(Step(calls=(Call(name="a", arguments="{'x': 1,", id="i"),)))
    assert listener.complete.tool_calls == (DraftCall("i", "a", "{'x': 1,"),)


async def test_thinking_is_told_apart_from_text(listener: Listener) -> None:
    await listener.ask(Step(thinking="Let me see.", text="Yes."))
    thought = "".join(chunk.text for chunk in listener.chunks if isinstance(chunk, ThinkingDelta))
    assert (thought, listener.text) == ("Let me see.", "Yes.")


async def test_text_that_postgres_cannot_hold_is_mended(listener: Listener) -> None:
    await listener.ask(Step(fault=Fault.LONE_SURROGATES))
    assert listener.text == "half a \ufffd face and a \ufffd."
    listener.text.encode()


async def test_reported_usage_is_taken_with_its_cached_tokens_and_priced(listener: Listener) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}
    await listener.ask(Step(text="hi", usage={**usage, "prompt_tokens_details": {"cached_tokens": 60}}))
    # 40 at 0.15, 60 cached at 0.075 and 5 at 0.60 dollars a million are 13.5 micro-dollars.
    assert listener.complete.usage == Usage(input_tokens=100, output_tokens=5, cached_tokens=60, cost_microusd=14)


@pytest.mark.parametrize(
    "usage",
    [{}, {"prompt_tokens": -5, "completion_tokens": "many"}, {"prompt_tokens": 10**12, "completion_tokens": None}],
    ids=["missing", "nonsense", "absurd"],
)
async def test_usage_that_cannot_be_true_is_estimated_and_the_answer_is_kept(listener: Listener, usage: Any) -> None:
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


async def test_calls_at_the_same_time_do_not_mix(litellm_provider: Provider, provider_double: ProviderDouble) -> None:
    provider_double.script(*(Step(match=f"^{n}$", text=f"{n} " * 20, token_seconds=0.005) for n in range(8)))

    async def ask(number: int) -> str:
        params = {"api_base": provider_double.api_base, "api_key": "k"}
        request = ProviderRequest("openai/gpt-4o-mini", ({"role": "user", "content": str(number)},), (), params)
        return "".join([chunk.text async for chunk in litellm_provider.stream(request) if isinstance(chunk, TextDelta)])

    assert await asyncio.gather(*map(ask, range(8))) == [f"{n} " * 20 for n in range(8)]


async def test_chunks_that_have_all_arrived_let_the_other_calls_run_between_them() -> None:
    from perdure.activities.providers.litellm_provider import _Checked

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
    chunks = _Checked(Arrived())
    for _ in range(100):
        await anext(chunks)
    beating.cancel()
    assert beats >= 99
