"""The parts that both clients share: connection settings, stream decoding, the intervals of polling."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from pydantic import ValidationError

from perdure.client.requests import UNREADABLE, ApiError, bare_url, path
from perdure.schemas.turns import Turn

PATIENCE_SECONDS = 45.0
"""Seconds for which a request to an API that does not respond is retried. A restart of the API takes less."""
_SHORTEST_POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.1, 1.0
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_LINE_END = re.compile(rb"\r\n|\n|\r(?=.)", re.DOTALL)
"""A CR at the end of the buffer can be half of a CRLF, so it stays there until the next byte."""
LAST_EVENT = "workflow_complete"
_SILENCE_SECONDS = 45.0
"""The API writes a heartbeat every 15 s. After three missed ones, the connection counts as broken."""
TIMEOUT = httpx.Timeout(_SILENCE_SECONDS, connect=5.0)


def http_options(base_url: str, token: str, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns the settings of an httpx client for this API. Without a token, `headers` authenticate the caller."""
    url = httpx.URL(base_url)
    bearer = {"Authorization": f"Bearer {token}"} if token else {}
    return {
        "base_url": base_url,
        "headers": {**bearer, "User-Agent": "perdure-client", **(headers or {})},
        # Proxies of the environment are for outgoing traffic, never for the API on this machine.
        "trust_env": url.host not in _LOOPBACK,
        # A client that follows a thousand turns holds a thousand streams. With httpx's default of 100 connections,
        # the next stream waits for a free one.
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20),
        # Redirects are not followed, so http never becomes https. Reading the certificates takes 0.2 s.
        "verify": url.scheme != "http",
    }


def is_success(response: httpx.Response) -> bool:
    """Returns whether the response is a success (2xx)."""
    return 200 <= response.status_code < 300


def unreadable_answer(response: httpx.Response, error: ValidationError) -> ApiError:
    """Returns the error for a response that breaks the contract. Usually, another program listens at the address."""
    first_fault = error.errors(include_url=False, include_input=False)[0]
    location = ".".join(map(str, first_fault["loc"])) or "the body"
    url = bare_url(response)
    return ApiError(
        response.status_code, UNREADABLE, f"{url} returned a response that this client cannot parse ({location})"
    )


def poll_seconds(waited_seconds: float, timeout_seconds: float | None, turn: Turn) -> float:
    """Returns the seconds until a turn is read again: a tenth of the time waited so far, between 0.1 s and 1 s.

    Raises: TimeoutError if `timeout_seconds` are over.
    """
    if timeout_seconds is not None and waited_seconds >= timeout_seconds:
        raise TimeoutError(f"the turn {turn.turn_id} is still {turn.status} after {waited_seconds:.1f} s")
    pause = min(max(waited_seconds / 10, _SHORTEST_POLL_SECONDS), _LONGEST_POLL_SECONDS)
    return pause if timeout_seconds is None else min(pause, timeout_seconds - waited_seconds)


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream."""

    kind: str
    data: dict[str, Any] = field(default_factory=dict)
    id: str | None = None
    """The id after which a reader can resume. The final `workflow_complete` has none."""

    @property
    def call_id(self) -> str:
        """The id of the event's call, or an empty text."""
        return str(self.data.get("call_id") or "")


class Decoder:
    """Decodes events from chunks of bytes; it buffers incomplete lines and events. The format of server-sent events
    ends lines at CR, LF and CRLF only. Python and httpx would also split texts at U+2028, NEL and form feed."""

    def __init__(self) -> None:
        self._buffer = b""
        self._kind = ""
        self._id: str | None = None
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yields the events that this chunk completes. Comments, which keep the connection open, are ignored."""
        self._buffer += chunk
        start = 0
        for end in _LINE_END.finditer(self._buffer):
            line = self._buffer[start : end.start()].decode("utf-8", "replace")
            start = end.end()
            event = self._take_line(line)
            if event is not None:
                yield event
        self._buffer = self._buffer[start:]

    def _take_line(self, line: str) -> Event | None:
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "event":
                self._kind = value
            elif name == "id":
                self._id = value
            elif name == "data":
                self._data.append(value)
            return None
        event = Event(self._kind or "message", _json("\n".join(self._data)), self._id) if self._data else None
        self._kind, self._id, self._data = "", None, []
        return event


def _json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return value if isinstance(value, dict) else {"value": value}


@dataclass(slots=True)
class Reader:
    """One reader of one stream. The clients hold the connections. A stream has ended after `workflow_complete`, or when
    the API answers a reconnect with 204. A connection that ends in any other way is opened again with the id of the
    last event, so that no event is missed or repeated."""

    path: str
    last_id: str | None = None
    is_over: bool = False

    @classmethod
    def of_turn(cls, turn_id: str, after: str | None) -> "Reader":
        """Returns a reader of a turn's stream, from its beginning or after an event."""
        return cls(path("turns", turn_id, "events"), after)

    @classmethod
    def of_conversation(cls, conversation_id: str, after: str | None) -> "Reader":
        """Returns a reader of a conversation's stream, which ends only when its reader leaves."""
        return cls(path("conversations", conversation_id, "stream"), after)

    def headers(self) -> dict[str, str]:
        """Returns the headers of the next connection. `Last-Event-ID` resumes after the last event that was read."""
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        return headers if self.last_id is None else {**headers, "Last-Event-ID": self.last_id}

    def record_event(self, event: Event) -> None:
        """Records an event before it is passed to the reader."""
        if event.id is not None:
            self.last_id = event.id
        if event.kind == LAST_EVENT and event.id is None:
            self.is_over = True

    def record_response(self, response: httpx.Response) -> None:
        """Records the response to a connection. A 204 ends the stream: there are no further events."""
        if response.status_code == 204:
            self.is_over = True
