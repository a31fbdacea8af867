"""The client for asyncio: the same names as the blocking one, as coroutines."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import wraps
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

import httpx
from pydantic import ValidationError

from perdure.client.connection import (
    PATIENCE_SECONDS,
    TIMEOUT,
    Decoder,
    Event,
    Reader,
    http_options,
    is_success,
    poll_seconds,
    unreadable_answer,
)
from perdure.client.requests import Call, RetryBudget
from perdure.client.subjects import ConversationCalls, Subjects, TurnCalls
from perdure.schemas.turns import Turn

P = ParamSpec("P")
T = TypeVar("T")


class AsyncClient(Subjects):
    """A client of Perdure's API for asyncio.

    Every method raises ApiError. Repeating a change is harmless, so requests are retried while the API is unavailable.
    """

    def __init__(
        self,
        base_url: str,
        token: str = "",
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        headers: Mapping[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Sends `headers` with every request. `transport` replaces the network connection; the pages use this."""
        self._http = httpx.AsyncClient(**http_options(base_url, token, headers), transport=transport)
        self._base_url = base_url
        self._patience_seconds = patience_seconds
        super().__init__()
        self.conversations = Conversations(self)
        self.turns = Turns(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def send(self, call: Call[T]) -> T:
        """Sends a call and returns its parsed response. All other methods send their calls with it. Failures that can
        be repeated safely are retried for as long as the client has patience.

        Raises: ApiError with the API's error. `status` is 0 if the API could not be reached.
        """
        retries = RetryBudget(self._base_url, self._patience_seconds)
        while True:
            try:
                response = await self._http.request(call.method, call.path, **call.arguments())
            except httpx.TransportError as error:
                await asyncio.sleep(retries.wait_after_failure(error, time.monotonic(), may_repeat=call.may_repeat))
                continue
            if not is_success(response):
                await asyncio.sleep(retries.wait_after_answer(response, time.monotonic()))
                continue
            try:
                return call.parse(response)
            except ValidationError as error:
                raise unreadable_answer(response, error) from error

    def method(self, make: Callable[P, Call[T]]) -> Callable[P, Awaitable[T]]:
        """Returns a coroutine function that sends the calls that `make` builds."""

        @wraps(make)
        async def send(*args: P.args, **kwargs: P.kwargs) -> T:
            return await self.send(make(*args, **kwargs))

        return send

    async def read(self, reader: Reader) -> AsyncGenerator[Event, None]:
        """Yields the events of a stream; reconnects as often as necessary."""
        retries = RetryBudget(self._base_url, self._patience_seconds)
        while not reader.is_over:
            try:
                async with self._http.stream("GET", reader.path, headers=reader.headers(), timeout=TIMEOUT) as response:
                    reader.record_response(response)
                    if is_success(response):
                        decoder = Decoder()
                        async for chunk in response.aiter_bytes():
                            retries.reset()
                            for event in decoder.feed(chunk):
                                reader.record_event(event)
                                yield event
                        wait = 0.0 if reader.is_over else retries.wait_after_stream_end(time.monotonic())
                    else:
                        await response.aread()
                        wait = retries.wait_after_answer(response, time.monotonic())
            except httpx.TransportError as error:
                wait = retries.wait_after_failure(error, time.monotonic())
            await asyncio.sleep(wait)


class Conversations(ConversationCalls[AsyncClient]):
    """Conversations of the caller."""

    def events(self, conversation_id: str, *, after: str | None = None) -> AsyncGenerator[Event, None]:
        """Yields the events of the conversation indefinitely; leave the loop to stop."""
        return self.client.read(Reader.of_conversation(conversation_id, after))


class Turns(TurnCalls[AsyncClient]):
    """Turns. A start that is retried starts one turn only."""

    def events(self, turn_id: str, *, after: str | None = None) -> AsyncGenerator[Event, None]:
        """Yields the turn's events from its beginning, or after the event with the id `after`, until the turn ends."""
        return self.client.read(Reader.of_turn(turn_id, after))

    async def wait(self, turn_id: str, *, timeout_seconds: float | None = None, through_pauses: bool = False) -> Turn:
        """Waits until the turn has ended or is paused, and returns it. With `through_pauses`, waits until it has ended.

        Raises: TimeoutError; ApiError.
        """
        started_at = time.monotonic()
        while True:
            turn = await self.get(turn_id)
            if turn.has_ended or (turn.is_paused and not through_pauses):
                return turn
            await asyncio.sleep(poll_seconds(time.monotonic() - started_at, timeout_seconds, turn))
