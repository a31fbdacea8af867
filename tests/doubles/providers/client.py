"""A client that asks the provider double through LiteLLM, and keeps what comes, also before an error."""

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest
from pydantic import JsonValue

from perdure.activities.providers.provider import (
    Chunk,
    Complete,
    Provider,
    ProviderRequest,
    TextDelta,
    TextWasThinking,
    ThinkingDelta,
)
from perdure.contracts.agents import Reasoning
from perdure.contracts.calls import OutputAsk
from perdure.contracts.errors import PerdureError
from tests.doubles.providers.script import Step
from tests.doubles.providers.server import ProviderDouble

UNWARNED = [
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince211"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]
"""For tests of LiteLLM: warnings inside it must not become errors there, which it would take for a broken stream."""
HELLO: dict[str, JsonValue] = {"role": "user", "content": "hello"}


class RecordingClient:
    def __init__(self, provider: Provider, double: ProviderDouble) -> None:
        self._provider = provider
        self.double = double
        self.chunks: list[Chunk] = []

    async def ask(
        self,
        *steps: Step,
        model: str = "openai/gpt-4o-mini",
        messages: Sequence[dict[str, JsonValue]] = (HELLO,),
        tools: Sequence[dict[str, JsonValue]] = (),
        seconds: float = 10.0,
        idle_seconds: float = 120.0,
        output: OutputAsk | None = None,
        reasoning: Reasoning | None = None,
        continues: bool = False,
        **params: Any,
    ) -> None:
        """Sends a request to the model's vendor, with a key. Without steps, the double keeps those that it has."""
        if steps:
            self.double.script(*steps)
        self.chunks = []
        where = {**self.double.params_for(model), **params}
        request = ProviderRequest(
            model, tuple(messages), tuple(tools), where, seconds, "turn-1.m1", output, reasoning, continues=continues,
            idle_seconds=idle_seconds,
        )  # fmt: skip
        async with aclosing(self._provider.stream(request)) as stream:
            async for chunk in stream:
                self.chunks.append(chunk)

    async def fail(self, *steps: Step, **asked: Any) -> PerdureError:
        with pytest.raises(PerdureError) as raised:
            await self.ask(*steps, **asked)
        return raised.value

    @property
    def text(self) -> str:
        texts: list[str] = []
        for chunk in self.chunks:
            if isinstance(chunk, TextWasThinking):
                texts.clear()
            elif isinstance(chunk, TextDelta):
                texts.append(chunk.text)
        return "".join(texts)

    @property
    def thought(self) -> str:
        return "".join(chunk.text for chunk in self.chunks if isinstance(chunk, ThinkingDelta | TextWasThinking))

    @property
    def complete(self) -> Complete:
        last = self.chunks[-1]
        assert isinstance(last, Complete)
        return last

    @property
    def body(self) -> Any:
        """What the latest request has sent."""
        return self.double.requests[-1].body
