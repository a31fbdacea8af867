"""One who talks to the provider double through a provider, and keeps what came."""

from contextlib import aclosing
from typing import Any

import pytest

from perdure.activities.providers.provider import Chunk, Complete, Provider, ProviderRequest, TextDelta
from perdure.contracts.errors import PerdureError
from tests.doubles.provider import ProviderDouble
from tests.doubles.provider_steps import Step

UNWARNED = [
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince211"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]
"""For tests of LiteLLM: warnings inside it must not become errors there, which it would take for a broken stream."""


class Listener:
    """Asks the double through LiteLLM and keeps what came, also before an error."""

    def __init__(self, provider: Provider, double: ProviderDouble) -> None:
        self._provider = provider
        self.double = double
        self.chunks: list[Chunk] = []

    async def ask(
        self,
        *steps: Step,
        model: str = "openai/gpt-4o-mini",
        seconds: float = 10.0,
        tools: tuple[dict[str, Any], ...] = (),
        continues: bool = False,
        **params: Any,
    ) -> None:
        self.double.script(*steps)
        self.chunks = []
        where = {"api_base": self.double.api_base, "api_key": "k"}
        request = ProviderRequest(
            model,
            ({"role": "user", "content": "hello"},),
            tools,
            {**where, **params},
            seconds,
            "turn-1.m1",
            continues=continues,
        )
        async with aclosing(self._provider.stream(request)) as stream:
            async for chunk in stream:
                self.chunks.append(chunk)

    async def fail(self, step: Step, seconds: float = 10.0) -> PerdureError:
        with pytest.raises(PerdureError) as raised:
            await self.ask(step, seconds=seconds)
        return raised.value

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks if isinstance(chunk, TextDelta))

    @property
    def complete(self) -> Complete:
        last = self.chunks[-1]
        assert isinstance(last, Complete)
        return last
