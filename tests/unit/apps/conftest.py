"""Both clients on one small real server: a test written once holds for the blocking and for the asyncio one."""

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from perdure import AsyncClient, Client
from perdure.client import Event
from tests.unit.apps.api_double import ApiDouble

PATIENCE_SECONDS = 2.0


class Either:
    """One client of either kind."""

    def __init__(self, client: Client | AsyncClient) -> None:
        self._client = client

    async def call(self, use: Callable[[Any], Any]) -> Any:
        """What `use` returns, awaited where it must be."""
        result = use(self._client)
        return await result if inspect.isawaitable(result) else result

    async def events(self, use: Callable[[Any], Any]) -> list[Event]:
        """All events of a stream."""
        stream = use(self._client)
        return [event async for event in stream] if hasattr(stream, "__aiter__") else list(stream)


@pytest.fixture
def api() -> Iterator[ApiDouble]:
    with ApiDouble() as double:
        yield double


@pytest.fixture(params=["blocking", "asyncio"])
async def client(api: ApiDouble, request: pytest.FixtureRequest) -> AsyncIterator[Either]:
    if request.param == "blocking":
        with Client(api.url, "t-1", patience_seconds=PATIENCE_SECONDS) as blocking:
            yield Either(blocking)
    else:
        async with AsyncClient(api.url, "t-1", patience_seconds=PATIENCE_SECONDS) as asynchronous:
            yield Either(asynchronous)
