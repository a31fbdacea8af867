"""What every provider promises, asked of the scripted model and of LiteLLM over real HTTP alike."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import pytest

from perdure.activities.providers.provider import Chunk, Complete, Provider, ProviderRequest, TextDelta
from perdure.activities.providers.scripted import ScriptedProvider, read_script
from perdure.contracts.errors import UpstreamRejected
from tests.doubles.providers.client import HELLO, UNWARNED
from tests.doubles.providers.script import Call, Step
from tests.doubles.providers.server import ProviderDouble
from tests.eventually import until

pytestmark = UNWARNED
LOOK_UP: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}},
}
TWO_CALLS = (("look_up", {"name": "Ada", "page": 1}), ("look_up", {"name": "Bob", "page": 2}))


@dataclass(frozen=True)
class Conversation:
    """A provider and a request with a known answer."""

    provider: Provider
    request: ProviderRequest
    gone: Callable[[], bool] = lambda: True
    """Whether the server has noticed that its client has disconnected."""

    async def chunks(self) -> list[Chunk]:
        async with aclosing(self.provider.stream(self.request)) as chunks:
            return [chunk async for chunk in chunks]


NewConversation = Callable[..., Conversation]


@pytest.fixture(params=["scripted", "litellm"])
def new_conversation(request: pytest.FixtureRequest) -> NewConversation:
    """Makes a conversation in which the model says `text` and asks for `calls`, `pace_seconds` a word."""
    # An asynchronous fixture cannot be set up in a running test.
    provider: Any = request.getfixturevalue("litellm_provider") if request.param == "litellm" else None

    def scripted(text: str = "", calls: Sequence[Any] = (), pace_seconds: float = 0.0, **more: Any) -> Conversation:
        call = [{"tool": name, "args": arguments} for name, arguments in calls]
        rule: dict[str, Any] = {"name": "only", "when": "hello", "say": text} | ({"call": call} if call else {})
        script = read_script({"rules": [rule], "tokens_per_second": 1 / pace_seconds if pace_seconds else 0})
        return Conversation(ScriptedProvider(script), ProviderRequest("scripted", (HELLO,), (LOOK_UP,), **more))

    def litellm(text: str = "", calls: Sequence[Any] = (), pace_seconds: float = 0.0, **more: Any) -> Conversation:
        double: ProviderDouble = request.getfixturevalue("provider_double")
        asked = tuple(Call(name=name, arguments=arguments) for name, arguments in calls)
        double.script(Step(text=text, calls=asked, token_seconds=pace_seconds, times=None))
        model = "openai/gpt-4o-mini"
        sent = ProviderRequest(model, (HELLO,), (LOOK_UP,), double.params_for(model), **more)
        gone = lambda: all(seen.outcome == "client_gone" for seen in double.requests)  # noqa: E731
        return Conversation(provider, sent, gone)

    return scripted if request.param == "scripted" else litellm


async def test_text_arrives_in_pieces_and_ends_with_one_complete(new_conversation: NewConversation) -> None:
    chunks = await new_conversation("Here are four words").chunks()
    pieces = [chunk for chunk in chunks if isinstance(chunk, TextDelta)]
    assert "".join(piece.text for piece in pieces) == "Here are four words"
    assert len(pieces) == 4
    assert [type(chunk) for chunk in chunks].index(Complete) == len(chunks) - 1
    last = chunks[-1]
    assert isinstance(last, Complete) and last.finish_reason == "stop" and last.tool_calls == () and last.model


async def test_calls_keep_their_order_and_arguments_and_get_unique_ids(new_conversation: NewConversation) -> None:
    last = (await new_conversation("Looking.", TWO_CALLS).chunks())[-1]
    assert isinstance(last, Complete) and last.finish_reason == "tool_calls"
    assert [call.name for call in last.tool_calls] == ["look_up", "look_up"]
    assert [call.raw_arguments.replace(" ", "") for call in last.tool_calls] == [
        '{"name":"Ada","page":1}',
        '{"name":"Bob","page":2}',
    ]
    assert len({call.provider_id for call in last.tool_calls} - {""}) == 2


async def test_an_answer_can_contain_calls_and_no_text(new_conversation: NewConversation) -> None:
    chunks = await new_conversation("", TWO_CALLS[:1]).chunks()
    assert len(chunks) == 1 and isinstance(chunks[0], Complete) and len(chunks[0].tool_calls) == 1


async def test_usage_is_counted_and_never_negative(new_conversation: NewConversation) -> None:
    short, long = [(await new_conversation(text).chunks())[-1] for text in ("one", "one two three four five six")]
    assert isinstance(short, Complete) and isinstance(long, Complete)
    assert 0 < short.usage.output_tokens < long.usage.output_tokens
    assert short.usage.input_tokens > 0 and short.usage.cached_tokens >= 0 and short.usage.cost_microusd >= 0


async def test_the_same_request_gets_the_same_answer(new_conversation: NewConversation) -> None:
    conversation = new_conversation("The same again", TWO_CALLS)
    assert await conversation.chunks() == await conversation.chunks()


async def test_an_answer_slower_than_its_deadline_is_a_timeout(new_conversation: NewConversation) -> None:
    slow = new_conversation("word " * 100, pace_seconds=0.1, timeout_seconds=3.0)
    chunks: list[Chunk] = []
    with pytest.raises(UpstreamRejected) as raised:
        async for chunk in slow.provider.stream(slow.request):
            chunks.append(chunk)
    assert raised.value.code == "model_timeout", "not retried: it would take as long again"
    assert chunks and all(isinstance(chunk, TextDelta) for chunk in chunks)


async def test_closing_the_stream_ends_the_request(new_conversation: NewConversation) -> None:
    endless = new_conversation("word " * 10_000, pace_seconds=0.01)
    async with aclosing(endless.provider.stream(endless.request)) as chunks:
        assert isinstance(await anext(chunks), TextDelta)
    await until(endless.gone)


async def test_cancelling_the_listener_ends_the_request(new_conversation: NewConversation) -> None:
    endless = new_conversation("word " * 10_000, pace_seconds=0.01)
    started = asyncio.Event()

    async def listen() -> None:
        async with aclosing(endless.provider.stream(endless.request)) as chunks:
            async for _ in chunks:
                started.set()

    task = asyncio.create_task(listen())
    await asyncio.wait_for(started.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(endless.gone)
