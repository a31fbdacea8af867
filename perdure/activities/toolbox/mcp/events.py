"""The events of an answer over HTTP. Messages that the library cannot read are hidden from it, except for answers. So
are answers to other requests."""

import re
from collections.abc import Iterator

from mcp_types import JSONRPCNotification, JSONRPCRequest

from perdure.activities.toolbox.mcp.answers import data_of, message_of, unread_answer
from perdure.activities.toolbox.mcp.wire import Note, is_same_id

_END = re.compile(rb"(?>\r\n|\r|\n){2}")
_END_BYTES = 4
_ID = re.compile(rb"^id: ?([^\r\n]*)", re.MULTILINE)
_HIDDEN = b"\nevent: perdure-unread\n\n"
"""A type that the library does not read. The last type of an event counts."""


class Events:
    """Cuts a stream into its events and records those that can be answers.

    The library takes any event that it cannot read for the end of the call, even if the answer follows. Such an event
    keeps its id, from which the stream can be resumed.
    """

    def __init__(self, note: Note, max_bytes: int) -> None:
        self._note = note
        self._max_bytes = max_bytes
        self._held = bytearray()
        self.is_full = False
        """True if an event is too large. The rest of the stream is then not read."""

    def read(self, piece: bytes) -> Iterator[bytes]:
        """Yields the events that end in this piece."""
        searched = max(0, len(self._held) - _END_BYTES + 1)
        self._held += piece
        start = 0
        for end in list(_END.finditer(self._held, searched)):
            yield self._shown(bytes(self._held[start : end.end()]))
            start = end.end()
        del self._held[:start]
        self.is_full = len(self._held) > self._max_bytes

    def rest(self) -> bytes:
        """Returns the event that has no end. If it is too large, the start of an answer counts as one."""
        held, note = bytes(self._held), self._note
        self._held.clear()
        if self.is_full and note.request_id is not None:
            text = data_of(held[: note.max_body_bytes].decode("utf-8", "replace"))
            if unread_answer(text, note.request_id) is not None:
                note.too_large = True
                note.keep(held)
        return held

    def _shown(self, event: bytes) -> bytes:
        if ids := _ID.findall(event):
            self._note.event_id = ids[-1].decode()
        text, request_id = data_of(event.decode()), self._note.request_id
        message = message_of(text)
        if isinstance(message, JSONRPCRequest | JSONRPCNotification):
            return event
        if message is None:
            is_read = request_id is None or unread_answer(text, request_id) is not None
        else:  # the library takes any answer in the stream for that of its request
            is_read = message.id is None or request_id is None or is_same_id(request_id, message.id)
        if not is_read and text.strip():
            return event.rstrip(b"\r\n") + _HIDDEN
        self._note.keep(event)
        return event
