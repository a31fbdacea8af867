"""The client for asyncio: the same names as the blocking one, to be awaited."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import wraps
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

import httpx
from pydantic import ValidationError

from perdure.client import turn_calls
from perdure.client.asynchronous_groups import (
    Agents,
    Approvals,
    Auth,
    Budgets,
    Delegations,
    Effects,
    Files,
    Prompts,
    Rules,
    Status,
    Team,
    Topologies,
    Users,
    Webhooks,
)
from perdure.client.calls import Call
from perdure.client.connection import PATIENCE_SECONDS, http_options, is_answered, poll_seconds, unreadable
from perdure.client.patience import Patience
from perdure.client.resume import TIMEOUT, Reader
from perdure.client.sse import Decoder, Event
from perdure.client.turn_answers import Turn

P = ParamSpec("P")
T = TypeVar("T")


class AsyncClient:
    """Perdure's API. Every method raises ApiError; changes may be repeated without harm and are, while it is away."""

    def __init__(
        self,
        base_url: str,
        token: str = "",
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        headers: Mapping[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`headers` go with every request, `transport` is another way to the API than a socket: see the pages."""
        self._http = httpx.AsyncClient(**http_options(base_url, token, headers), transport=transport)
        self._base_url = base_url
        self._patience_seconds = patience_seconds
        self.conversations = Conversations(self)
        self.turns = Turns(self)
        self.auth = Auth(self)
        self.approvals = Approvals(self)
        self.delegations = Delegations(self)
        self.effects = Effects(self)
        self.files = Files(self)
        self.agents = Agents(self)
        self.topologies = Topologies(self)
        self.users = Users(self)
        self.prompts = Prompts(self)
        self.budgets = Budgets(self)
        self.rules = Rules(self)
        self.status = Status(self)
        self.team = Team(self)
        self.webhooks = Webhooks(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give the connections back."""
        await self._http.aclose()

    async def send(self, call: Call[T]) -> T:
        """Send a call made by hand; the methods below are this with a name."""
        patience = Patience(self._base_url, self._patience_seconds)
        while True:
            try:
                response = await self._http.request(call.method, call.path, **call.arguments())
            except httpx.TransportError as error:
                await asyncio.sleep(patience.after_break(error, time.monotonic(), may_repeat=call.may_repeat))
                continue
            if not is_answered(response):
                await asyncio.sleep(patience.after_answer(response, time.monotonic()))
                continue
            try:
                return call.read(response)
            except ValidationError as error:
                raise unreadable(response, error) from error

    def method(self, make: Callable[P, Call[T]]) -> Callable[P, Awaitable[T]]:
        """The method that sends what `make` makes."""

        @wraps(make)
        async def send(*args: P.args, **kwargs: P.kwargs) -> T:
            return await self.send(make(*args, **kwargs))

        return send

    async def read(self, reader: Reader) -> AsyncGenerator[Event, None]:
        """The events of a stream, across as many connections as it takes."""
        patience = Patience(self._base_url, self._patience_seconds)
        while not reader.is_over:
            try:
                async with self._http.stream("GET", reader.path, headers=reader.headers(), timeout=TIMEOUT) as response:
                    reader.answered(response)
                    if is_answered(response):
                        decoder = Decoder()
                        async for chunk in response.aiter_bytes():
                            patience.answered()
                            for event in decoder.feed(chunk):
                                reader.saw(event)
                                yield event
                        wait = 0.0 if reader.is_over else patience.after_end(time.monotonic())
                    else:
                        await response.aread()
                        wait = patience.after_answer(response, time.monotonic())
            except httpx.TransportError as error:
                wait = patience.after_break(error, time.monotonic())
            await asyncio.sleep(wait)


class Conversations:
    """Conversations of the caller."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.create = client.method(turn_calls.create_conversation)
        self.list = client.method(turn_calls.list_conversations)
        self.get = client.method(turn_calls.get_conversation)
        self.rename = client.method(turn_calls.rename_conversation)
        self.delete = client.method(turn_calls.delete_conversation)
        self.messages = client.method(turn_calls.list_messages)
        self.story = client.method(turn_calls.conversation_story)

    def events(self, conversation_id: str, *, after: str | None = None) -> AsyncGenerator[Event, None]:
        """Everything that happens in it, for ever; leave the loop to end it."""
        return self._client.read(Reader.of_conversation(conversation_id, after))


class Turns:
    """Turns: started once, whatever breaks in between."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.start = client.method(turn_calls.start_turn)
        self.execute = client.method(turn_calls.execute)
        self.get = client.method(turn_calls.get_turn)
        self.list = client.method(turn_calls.list_turns)
        self.segments = client.method(turn_calls.turn_segments)
        self.metrics = client.method(turn_calls.turn_metrics)
        self.calls = client.method(turn_calls.list_calls)
        self.stop = client.method(turn_calls.stop_turn)
        self.question = client.method(turn_calls.get_question)
        self.answer = client.method(turn_calls.answer_question)
        self.raise_limits = client.method(turn_calls.raise_limits)

    def events(self, turn_id: str, *, after: str | None = None) -> AsyncGenerator[Event, None]:
        """The turn's events from its beginning, or after the event with the id `after`, to its end."""
        return self._client.read(Reader.of_turn(turn_id, after))

    async def wait(self, turn_id: str, *, timeout_seconds: float | None = None, through_pauses: bool = False) -> Turn:
        """The turn once it has ended or waits for a person; with `through_pauses` once it has ended.

        Raises: TimeoutError; ApiError.
        """
        began = time.monotonic()
        while True:
            turn = await self.get(turn_id)
            if turn.has_ended or (turn.is_paused and not through_pauses):
                return turn
            await asyncio.sleep(poll_seconds(time.monotonic() - began, timeout_seconds, turn))
