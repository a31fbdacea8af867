"""Where a reader of a stream stands, and when the stream is over. Pure: the clients hold the connection.

A stream is over after `workflow_complete`, or when the API answers a reconnect with 204. A connection that ends in any
other way is opened again with the id of the last event seen, so that nothing is missed or comes twice.
"""

from dataclasses import dataclass

import httpx

from perdure.client.calls import path
from perdure.client.sse import Event

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
