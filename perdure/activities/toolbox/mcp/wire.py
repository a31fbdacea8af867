"""The record of one connection to an MCP server: which calls were sent, and how their answers came back."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ATTEMPT_FIELD = "perdure/attempt"
"""The field of a call's `_meta` with the token of this attempt. It has no meaning for the server."""
CLOSED_MESSAGES = ("Connection closed", "SSE stream failed", "SSE stream ended")
"""Beginnings of the library's messages about calls without a response. It marks them in no other way."""
MAX_BODY_BYTES = 1024 * 1024
"""Kept of a response over HTTP. An answer that cannot be parsed is shown to the model from it, and cut there anyway."""


@dataclass(slots=True)
class Note:
    """The record of one call on the wire."""

    sent: bool = False
    """True if any part of the call may have reached the server."""
    status: int | None = None
    """The HTTP status of the response, if there was one."""
    retry_after_seconds: float | None = None
    lost: bool = False
    """True if the call was sent and the connection broke before a response began."""
    request_id: int | str | None = None
    misfit: str = ""
    """The reason if the response is not a valid result. Its text then replaces it."""
    has_error: bool = False
    """True if the server itself answered with an error. The library raises errors with the same codes."""
    too_large: bool = False
    """True if the response was cut off: it exceeds the limit, or its encoding is not supported here."""
    body: bytearray = field(default_factory=bytearray)
    """The start of a response over HTTP, at most `max_body_bytes`."""
    max_body_bytes: int = MAX_BODY_BYTES
    answer_bytes: int | None = None
    """Limit of the response over HTTP; None: that of the server's answers."""
    event_id: str = ""
    """The id of the last event of a stream. The library resumes a broken stream from it."""

    def keep(self, text: bytes) -> None:
        """Adds a part of the response to `body`."""
        self.body += text[: self.max_body_bytes - len(self.body)]


@dataclass(slots=True)
class Wire:
    """The state of one connection. It records for each call whether it was sent, and how it came back. The library
    distinguishes only partly between a call that was never sent and one that was lost. For an `opaque` tool that
    difference decides. Both transports therefore record each call here, by a token in its `_meta`. Without a note,
    nothing was sent."""

    notes: dict[str, Note] = field(default_factory=dict)
    """Notes of the open calls, by token."""
    others: dict[int | str, Note] = field(default_factory=dict)
    """Notes of the other open requests over HTTP, by id."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the connection has ended or must end."""
    has_eof: bool = False
    """True if a process ended its output."""
    exit_code: int | None = None
    """The exit code of a process that ended by itself."""
    http_fault: str = ""
    """The reason if the last response over HTTP cannot be an answer, or there was none."""
    words: str = ""
    """The server's last error."""
    refused: str = ""
    """The rule of outgoing requests that forbids this server; empty if it is allowed."""
    protocol: str = "2025-11-25"
    """The version of the protocol that client and server use."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Listed tools that break the protocol or are too large, with the reason, which follows the name."""

    def note(self, message: Mapping[str, Any]) -> Note | None:
        """Returns the note of the call in this message, or None if the message is not a recorded call."""
        params = message.get("params")
        meta = params.get("_meta") if isinstance(params, Mapping) else None
        token = meta.get(ATTEMPT_FIELD) if isinstance(meta, Mapping) else None
        note = self.notes.get(token) if isinstance(token, str) else None
        if note is not None:
            note.request_id = message.get("id")
        return note

    def note_of(self, request_id: int | str) -> Note | None:
        """Returns the note of the open call with this id."""
        return next((note for note in self.notes.values() if is_same_id(note.request_id, request_id)), None)

    def note_resumed(self, event_id: str) -> Note | None:
        """Returns the note of the request whose stream ended after this event."""
        notes = (*self.notes.values(), *self.others.values())
        return next((note for note in notes if event_id and note.event_id == event_id), None)


def is_same_id(sent: object, answered: object) -> bool:
    """Returns whether an answer names the request. Some servers answer 5 as "5" or 5.0."""
    return sent is not None and whole_id(sent) == whole_id(answered)


def whole_id(value: object) -> object:
    """Returns the id as the library sent it."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}(?:\.0)?", value):
        return int(value.removesuffix(".0"))
    return value
