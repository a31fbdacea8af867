"""Odd answers that are answers all the same: what LiteLLM hands on is whole, storable, counted and priced."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import JsonValue
from structlog.testing import capture_logs

from perdure.activities.providers.provider import Complete, Draft, DraftCall, Provider
from perdure.contracts.errors import UpstreamUnavailable
from perdure.contracts.turns import Usage
from tests.doubles.providers.client import UNWARNED, RecordingClient
from tests.doubles.providers.script import Call, Step
from tests.doubles.providers.server import ProviderDouble

pytestmark = UNWARNED

CLAUDE, OPENAI = "anthropic/claude-sonnet-4-5", "openai/gpt-4o-mini"
ROUTES = ("openai/m", "mistral/m", "deepseek/m", "hosted_vllm/m", "openrouter/a/m", "groq/m", "together_ai/m", "xai/m")


@pytest.mark.parametrize("model", ROUTES)
async def test_no_route_makes_a_cut_or_broken_answer_whole(client: RecordingClient, model: str) -> None:
    await client.ask(Step(text="And then", finish_reason="model_length"), model=model)
    assert (client.complete.finish_reason, client.complete.truncated) == ("length", True)
    for reason in ("error", "meltdown"):
        with pytest.raises(UpstreamUnavailable) as raised:
            await client.ask(Step(text="And then", finish_reason=reason), model=model)
        assert raised.value.code == "model_unreadable"


async def test_reasoning_is_separated_from_text_and_broken_arguments_are_passed_on(client: RecordingClient) -> None:
    broken = Call(name="a", arguments="{'x': 1,", id="i")
    await client.ask(Step(thinking="Let me see.", text="Yes.", calls=(broken,)))
    assert (client.thought, client.text) == ("Let me see.", "Yes.")
    assert client.complete.tool_calls == (DraftCall("i", "a", "{'x': 1,"),)


@pytest.mark.parametrize(("step", "requests"), [
    (Step(whole=True), 1), (Step(whole=True, media="text/plain"), 1), (Step(refuses=("stream_options",)), 2),
    (Step(refuses=("stream",)), 2), (Step(refuses=("stream_options", "stream")), 3),
], ids=["ignores stream", "as plain text", "refuses its options", "refuses it", "refuses both"])  # fmt: skip
async def test_a_server_that_does_not_stream_is_read(client: RecordingClient, step: Step, requests: int) -> None:
    calls = (Call(name="a", id="i"), Call(name="b", id="j"))
    await client.ask(step.model_copy(update={"text": "Yes.", "calls": calls}))
    assert (client.text, len(client.double.requests)) == ("Yes.", requests)
    assert client.complete.tool_calls == (DraftCall("i", "a", "{}"), DraftCall("j", "b", "{}"))


async def test_halves_parts_and_tags_are_text_and_reasoning(client: RecordingClient) -> None:
    contents: list[JsonValue] = ["<thi", "nk>Hm.</think>", [{"type": "text", "text": "hi \ud83d"}], "\ude00"]
    await client.ask(Step(deltas=tuple({"content": each} for each in contents)))
    assert (client.thought, client.text) == ("Hm.", "hi \U0001f600")
    await client.ask(Step(text="So it is 4.\n</think>\n\nIt is 4."))
    assert (client.thought, client.text) == ("So it is 4.\n", "It is 4."), "a template has opened the tag"
    error = await client.fail(Step(text=" \n "))
    assert error.code == "model_empty_answer" and error.retryable


async def test_a_continuation_can_add_nothing(client: RecordingClient) -> None:
    await client.ask(Step(), continues=True)
    assert [type(chunk) for chunk in client.chunks] == [Complete]


async def test_a_pause_before_the_first_word_is_an_end_without_calls(client: RecordingClient) -> None:
    for calls in ((), (Call(name="web_search", id="srvtoolu_1"),)):
        await client.ask(Step(calls=calls, finish_reason="pause_turn"), model=CLAUDE)
        assert (client.text, client.complete.finish_reason, client.complete.tool_calls) == ("", "pause_turn", ())


@pytest.mark.parametrize("model", [OPENAI, CLAUDE, "gemini/gemini-2.5-pro", "ollama_chat/qwen3:8b"])
async def test_line_ends_of_unicode_end_no_line_on_any_wire(client: RecordingClient, model: str) -> None:
    await client.ask(Step(text="one\u2028 two\u0085 three\u2029 four"), model=model)
    assert client.text == "one\u2028 two\u0085 three\u2029 four"


@pytest.mark.parametrize("model", [OPENAI, CLAUDE])
async def test_equal_pieces_are_an_answer(client: RecordingClient, model: str) -> None:
    await client.ask(Step(text="---- " * 500), model=model)
    assert client.text == "---- " * 500


async def test_reported_usage_is_priced_with_its_cached_tokens(client: RecordingClient) -> None:
    usage: dict[str, JsonValue] = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}
    await client.ask(Step(text="hi", usage={**usage, "prompt_tokens_details": {"cached_tokens": 60}}))
    # 40 at 0.15, 60 cached at 0.075 and 5 at 0.60 dollars a million are 13.5 micro-dollars.
    assert client.complete.usage == Usage(input_tokens=100, output_tokens=5, cached_tokens=60, cost_microusd=14)
    cache = {"cache_creation_input_tokens": 2_000, "cache_read_input_tokens": 1_000}
    await client.ask(Step(text="Yes.", usage={**usage, **cache}), model=CLAUDE)
    # 100 at 3, 2,000 written at 3.75, 1,000 read at 0.30 and 5 at 15 dollars a million.
    expected = Usage(input_tokens=3_100, output_tokens=5, cached_tokens=1_000, cost_microusd=8_175)
    assert client.complete.usage == expected


async def test_impossible_usage_is_estimated_and_the_answer_is_kept(client: RecordingClient) -> None:
    await client.ask(Step(text="hello to you all", usage={"prompt_tokens": 10**12, "completion_tokens": None}))
    counted = client.complete.usage
    assert 0 < counted.input_tokens < 100 and 0 < counted.output_tokens < 100 and 0 < counted.cost_microusd < 1000


async def test_a_model_without_a_price_costs_nothing_and_is_flagged_once(client: RecordingClient) -> None:
    with capture_logs() as lines:
        for _ in range(3):
            await client.ask(Step(text="hi"), model="openai/made-in-the-shed")
    assert client.complete.usage.cost_microusd == 0 and client.complete.usage.output_tokens > 0
    assert [line["model"] for line in lines if line["event"] == "model_without_price"] == ["openai/made-in-the-shed"]


async def test_the_idempotency_key_and_the_credentials_are_sent(client: RecordingClient) -> None:
    await client.ask(Step(text="hi"), temperature=0.2, extra_headers={"X-Team": "blue"})
    (seen,) = client.double.requests
    assert seen.idempotency_key == "turn-1.m1" and seen.authorized and seen.body["temperature"] == 0.2


async def test_simultaneous_calls_do_not_mix(litellm_provider: Provider, provider_double: ProviderDouble) -> None:
    provider_double.script(*(Step(match=f"^{n}$", text=f"{n} " * 20, token_seconds=0.005) for n in range(8)))

    async def ask(number: int) -> str:
        client = RecordingClient(litellm_provider, provider_double)
        await client.ask(messages=[{"role": "user", "content": str(number)}])
        return client.text

    assert await asyncio.gather(*map(ask, range(8))) == [f"{n} " * 20 for n in range(8)]


async def test_other_calls_run_between_chunks_that_have_all_arrived() -> None:
    from perdure.activities.providers.litellm_provider import _CheckedStream

    async def arrived() -> AsyncIterator[Any]:
        while True:
            yield SimpleNamespace(choices=())

    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    beating = asyncio.create_task(beat())
    chunks = _CheckedStream(arrived(), Draft())
    for _ in range(100):
        await anext(chunks)
    beating.cancel()
    assert beats >= 99
