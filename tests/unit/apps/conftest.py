"""Both clients on one small real server: a test written once holds for the blocking and for the asyncio one."""

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from perdure import ApiError, AsyncClient, Client
from perdure.client import Event
from tests.unit.apps.api_double import ApiDouble, Reply

PATIENCE_SECONDS = 2.0


class Either:
    """One client of either kind, and the server that it asks."""

    def __init__(self, client: Client | AsyncClient, api: ApiDouble) -> None:
        self._client, self.will, self.asked = client, api.will, api.asked

    async def call(self, use: Callable[[Any], Any], *replies: Reply) -> Any:
        """What `use` returns, awaited where it must be, once the server has these replies."""
        self.will(*replies)
        result = use(self._client)
        return await result if inspect.isawaitable(result) else result

    async def refused(self, use: Callable[[Any], Any], *replies: Reply) -> ApiError:
        self.will(*replies)
        with pytest.raises(ApiError) as raised:
            found = use(self._client)
            await (found if inspect.isawaitable(found) else self.events(lambda _: found))
        return raised.value

    async def events(self, use: Callable[[Any], Any], *replies: Reply) -> list[Event]:
        self.will(*replies)
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
            yield Either(blocking, api)
    else:
        async with AsyncClient(api.url, "t-1", patience_seconds=PATIENCE_SECONDS) as asynchronous:
            yield Either(asynchronous, api)
