"""What both clients share of a connection: its settings, what counts as an answer, how a wait is paced."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from pydantic import ValidationError

from perdure.client.requests import UNREADABLE, ApiError, path
from perdure.client.turns import Turn

PATIENCE_SECONDS = 45.0
"""For how long an API that does not answer is asked again: one that is started anew is back by then."""
_SHORTEST_POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.1, 1.0
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def http_options(base_url: str, token: str, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The settings of an httpx client for this API; without a token, `headers` say who asks."""
    url = httpx.URL(base_url)
    bearer = {"Authorization": f"Bearer {token}"} if token else {}
    return {
        "base_url": base_url,
        "headers": {**bearer, "User-Agent": "perdure-client", **(headers or {})},
        # A proxy in the environment is for the way out, never for this machine's own API.
        "trust_env": url.host not in _LOOPBACK,
        # One who follows a thousand turns holds a thousand streams; httpx lets the hundred-and-first wait for ever.
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20),
        # Redirects are not followed, so plain http never becomes https; reading the certificates takes 0.2 s.
        "verify": url.scheme != "http",
    }


def is_answered(response: httpx.Response) -> bool:
    """Whether this is what was asked for."""
    return 200 <= response.status_code < 300


def unreadable(response: httpx.Response, error: ValidationError) -> ApiError:
    """An answer that is not what the contract says: most often another program listens at the address."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"])) or "the body"
    url = response.request.url.copy_with(query=None)
    return ApiError(response.status_code, UNREADABLE, f"{url} answered what this client cannot read ({where})")


def poll_seconds(waited_seconds: float, timeout_seconds: float | None, turn: Turn) -> float:
    """How long to wait before the next look at a turn: a tenth of the wait so far.

    Raises: TimeoutError where the time is over.
    """
    if timeout_seconds is not None and waited_seconds >= timeout_seconds:
        raise TimeoutError(f"turn {turn.turn_id} is still {turn.status} after {waited_seconds:.1f} s")
    pause = min(max(waited_seconds / 10, _SHORTEST_POLL_SECONDS), _LONGEST_POLL_SECONDS)
    return pause if timeout_seconds is None else min(pause, timeout_seconds - waited_seconds)


# --- Server-sent events: from bytes to events.
# Lines are cut at CR, LF and CRLF only, as the format says: text may hold other characters at which Python and httpx
# would cut a line (U+2028, NEL, form feed).

_LINE_END = re.compile(rb"\r\n|\n|\r(?=.)", re.DOTALL)
"""A CR at the very end of what is there may be half of a CRLF: it waits for the next byte."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream."""

    kind: str
    data: dict[str, Any] = field(default_factory=dict)
    id: str | None = None
    """Where to go on from; the closing `workflow_complete` has none."""

    @property
    def call_id(self) -> str:
        """The call that it is about, empty where it is about none."""
        return str(self.data.get("call_id") or "")


class Decoder:
    """Feed it bytes as they come; it keeps what is not yet whole."""

    def __init__(self) -> None:
        self._left = b""
        self._kind = ""
        self._id: str | None = None
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that are whole now. Comments, which keep the connection alive, are passed by."""
        self._left += chunk
        start = 0
        for end in _LINE_END.finditer(self._left):
            line = self._left[start : end.start()].decode("utf-8", "replace")
            start = end.end()
            event = self._take(line)
            if event is not None:
                yield event
        self._left = self._left[start:]

    def _take(self, line: str) -> Event | None:
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


# --- Where a reader of a stream stands, and when the stream is over.
# Pure: the clients hold the connection.
#
# A stream is over after `workflow_complete`, or when the API answers a reconnect with 204. A connection that ends in
# any other way is opened again with the id of the last event seen, so that nothing is missed or comes twice.

LAST_EVENT = "workflow_complete"
_SILENCE_SECONDS = 45.0
"""The API writes a heartbeat every 15 s; after three missed ones the connection counts as broken."""

TIMEOUT = httpx.Timeout(_SILENCE_SECONDS, connect=5.0)


@dataclass(slots=True)
class Reader:
    """One reader of one stream."""

    path: str
    last_id: str | None = None
    is_over: bool = False

    @classmethod
    def of_turn(cls, turn_id: str, after: str | None) -> "Reader":
        """A turn's stream, from its beginning or after an event."""
        return cls(path("turns", turn_id, "events"), after)

    @classmethod
    def of_conversation(cls, conversation_id: str, after: str | None) -> "Reader":
        """A conversation's stream, which ends only when its reader leaves."""
        return cls(path("conversations", conversation_id, "stream"), after)

    def headers(self) -> dict[str, str]:
        """What the next connection asks for."""
        asked = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        return asked if self.last_id is None else {**asked, "Last-Event-ID": self.last_id}

    def saw(self, event: Event) -> None:
        """Note an event that goes to the reader now."""
        if event.id is not None:
            self.last_id = event.id
        if event.kind == LAST_EVENT and event.id is None:
            self.is_over = True

    def answered(self, response: httpx.Response) -> None:
        """Note what a connection was answered with."""
        if response.status_code == 204:
            self.is_over = True
