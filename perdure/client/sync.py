"""The blocking client."""

import time
from collections.abc import Callable, Iterator
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


class Client(Subjects):
    """A blocking client of Perdure's API.

    Every method raises ApiError. Repeating a change is harmless, so requests are retried while the API is unavailable.
    """

    def __init__(self, base_url: str, token: str, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._http = httpx.Client(**http_options(base_url, token))
        self._base_url = base_url
        self._patience_seconds = patience_seconds
        super().__init__()
        self.conversations = Conversations(self)
        self.turns = Turns(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def send(self, call: Call[T]) -> T:
        """Sends a call and returns its parsed response. All other methods send their calls with it. Failures that can
        be repeated safely are retried for as long as the client has patience.

        Raises: ApiError with the API's error. `status` is 0 if the API could not be reached.
        """
        retries = RetryBudget(self._base_url, self._patience_seconds)
        while True:
            try:
                response = self._http.request(call.method, call.path, **call.arguments())
            except httpx.TransportError as error:
                time.sleep(retries.wait_after_failure(error, time.monotonic(), may_repeat=call.may_repeat))
                continue
            if not is_success(response):
                time.sleep(retries.wait_after_answer(response, time.monotonic()))
                continue
            try:
                return call.parse(response)
            except ValidationError as error:
                raise unreadable_answer(response, error) from error

    def method(self, make: Callable[P, Call[T]]) -> Callable[P, T]:
        """Returns a method that sends the calls that `make` builds."""

        @wraps(make)
        def send(*args: P.args, **kwargs: P.kwargs) -> T:
            return self.send(make(*args, **kwargs))

        return send

    def read(self, reader: Reader) -> Iterator[Event]:
        """Yields the events of a stream; reconnects as often as necessary."""
        retries = RetryBudget(self._base_url, self._patience_seconds)
        while not reader.is_over:
            try:
                with self._http.stream("GET", reader.path, headers=reader.headers(), timeout=TIMEOUT) as response:
                    reader.record_response(response)
                    if is_success(response):
                        decoder = Decoder()
                        for chunk in response.iter_bytes():
                            retries.reset()
                            for event in decoder.feed(chunk):
                                reader.record_event(event)
                                yield event
                        wait = 0.0 if reader.is_over else retries.wait_after_stream_end(time.monotonic())
                    else:
                        response.read()
                        wait = retries.wait_after_answer(response, time.monotonic())
            except httpx.TransportError as error:
                wait = retries.wait_after_failure(error, time.monotonic())
            time.sleep(wait)


class Conversations(ConversationCalls[Client]):
    """Conversations of the caller."""

    def events(self, conversation_id: str, *, after: str | None = None) -> Iterator[Event]:
        """Yields the events of the conversation indefinitely; leave the loop to stop."""
        return self.client.read(Reader.of_conversation(conversation_id, after))


class Turns(TurnCalls[Client]):
    """Turns. A start that is retried starts one turn only."""

    def events(self, turn_id: str, *, after: str | None = None) -> Iterator[Event]:
        """Yields the turn's events from its beginning, or after the event with the id `after`, until the turn ends."""
        return self.client.read(Reader.of_turn(turn_id, after))

    def wait(self, turn_id: str, *, timeout_seconds: float | None = None, through_pauses: bool = False) -> Turn:
        """Waits until the turn has ended or is paused, and returns it. With `through_pauses`, waits until it has ended.

        Raises: TimeoutError; ApiError.
        """
        started_at = time.monotonic()
        while True:
            turn = self.get(turn_id)
            if turn.has_ended or (turn.is_paused and not through_pauses):
                return turn
            time.sleep(poll_seconds(time.monotonic() - started_at, timeout_seconds, turn))
