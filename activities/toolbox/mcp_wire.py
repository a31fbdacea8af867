"""What is known of the calls of one connection to an MCP server: whether they went out, and how they came back.

The library tells a call that never left from one that was lost only in part, and an `opaque` tool lives on exactly that
difference. So both transports note each call here, by a token that it carries in its `_meta`: no note, nothing sent.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ATTEMPT = "perdure/attempt"
"""In a call's `_meta`: the token of this try, which means nothing to the server."""
MOST_MESSAGE_BYTES = 16 * 1024 * 1024
"""The largest line of a program and the largest event of a stream that is read; a larger one ends the call that it
answers. An answer over HTTP has a limit of its own (PERDURE_ANSWER_BYTES)."""


@dataclass(slots=True)
class Note:
    """One call on the wire."""

    sent: bool = False
    """Something of it may have reached the server."""
    status: int | None = None
    """The HTTP status of the answer, where there was one."""
    retry_after_seconds: float | None = None
    lost: bool = False
    """It went out and the connection broke off before an answer began."""
    too_large: bool = False
    """The answer was cut off: it has more bytes than are read, or an encoding that is not unpacked here."""


@dataclass(slots=True)
class Wire:
    """One connection."""

    notes: dict[str, Note] = field(default_factory=dict)
    """By token, for as long as the call is under way."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the connection is over, or shall be."""
    refused: str = ""
    """Why the rules of outgoing requests forbid to reach the server, if they do."""

    def note(self, message: Mapping[str, Any]) -> Note | None:
        """The note of the call that this message is, if it is one."""
        params = message.get("params")
        meta = params.get("_meta") if isinstance(params, Mapping) else None
        token = meta.get(ATTEMPT) if isinstance(meta, Mapping) else None
        return self.notes.get(token) if isinstance(token, str) else None
