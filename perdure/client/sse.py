"""Server-sent events: from bytes to events.

Lines are cut at CR, LF and CRLF only, as the format says: text may hold other characters at which Python and httpx
would cut a line (U+2028, NEL, form feed).
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

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
