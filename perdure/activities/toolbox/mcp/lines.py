"""Lines that a process writes. A message is one line or is spread over several; too long ones are skipped."""

import asyncio
import re
from codecs import BOM_UTF8
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from perdure.activities.toolbox.mcp.answers import (
    ANSWER_START,
    EXCERPT_BYTES,
    UnmatchedLine,
    parse_messages,
    request_id_of,
)

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""The largest message of a process and the largest event of a stream that is read. A larger one ends the call that it
answers. Answers over HTTP have a separate limit (PERDURE_ANSWER_BYTES)."""
MAX_SKIPPED_BYTES = 8 * MAX_MESSAGE_BYTES
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)', re.DOTALL)
"""A string, or the rest of a line that has only its start. Without that, the time would be quadratic."""
_STARTS = re.compile(rb'\{\s*+(?:"|$)')
_OPENS = (b"{", b"[", b",")
"""Ends of a line after which its message continues."""


@dataclass(frozen=True, slots=True)
class SkippedLine:
    """A skipped line."""

    request_id: int | str
    """The id of the request that it answers."""
    start: bytes = field(default=b"", compare=False)


async def lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes | SkippedLine]:
    """Yields the lines until the stream ends. The stream's limit is the longest line.

    A line that is too long is skipped, so that later lines still count. The call that it answers is read from its first
    and last bytes. This is exact for the ways in which servers write an answer: `id` comes before the result, or is the
    last field except for `jsonrpc`. Any other line cannot be matched to a call.

    Raises: UnmatchedLine.
    """
    head, tail, skipped_bytes = b"", b"", 0
    while True:
        try:
            line = await stream.readuntil()
        except asyncio.LimitOverrunError as overrun:
            piece = await stream.readexactly(overrun.consumed)
            head, tail = head or piece[:EXCERPT_BYTES], piece[-EXCERPT_BYTES:]
            skipped_bytes += len(piece)
            if skipped_bytes > MAX_SKIPPED_BYTES or not ANSWER_START.match(head):
                raise UnmatchedLine from None
            continue
        except asyncio.IncompleteReadError as end:
            line = b"" if skipped_bytes else end.partial
        if not line:
            return
        yield SkippedLine(request_id_of(head, tail + line), head) if skipped_bytes else line
        head, tail, skipped_bytes = b"", b"", 0


async def joined_lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes | SkippedLine]:
    """Yields the lines, with those of one message that is spread over several (pretty-printed) as one.

    A line that begins with `{` and ends with `{`, `[` or `,` starts such a message. The message ends when all brackets
    are closed, or before a line that is a whole message. A message that is too long is skipped.

    Raises: UnmatchedLine.
    """
    held = _Held()
    async for line in lines(stream):
        if held.depth and (isinstance(line, SkippedLine) or _is_message(line)):
            yield held.joined()
            held = _Held()
        if isinstance(line, SkippedLine) or not (held.depth or _continues(line)):
            yield line
            continue
        held.add(line)
        if held.depth <= 0:
            yield held.joined()
            held = _Held()
    if held.depth:
        yield bytes(held.text).rstrip()


class _Held:
    """The lines of a message that has no end yet."""

    def __init__(self) -> None:
        self.text = bytearray()
        self.depth = 0
        """The brackets that are open."""
        self._size = 0

    def add(self, line: bytes) -> None:
        """Adds a line. Raises: UnmatchedLine if the message does not end."""
        self.text += line
        self._size += len(line)
        if self._size > MAX_SKIPPED_BYTES:
            raise UnmatchedLine
        if self._size > MAX_MESSAGE_BYTES:
            del self.text[EXCERPT_BYTES:-EXCERPT_BYTES]
        code = _STRING.sub(b"", line)
        self.depth += sum(map(code.count, (b"{", b"["))) - sum(map(code.count, (b"}", b"]")))

    def joined(self) -> bytes | SkippedLine:
        """Returns the lines as one. Raises: UnmatchedLine if they are too long and cannot be matched to a call."""
        if self._size <= MAX_MESSAGE_BYTES:
            return bytes(self.text)
        head = bytes(self.text[:EXCERPT_BYTES])
        return SkippedLine(request_id_of(head, bytes(self.text)), head)


def _continues(line: bytes) -> bool:
    """Returns whether a message may begin in this line and end in a later one. A string must end in its line."""
    code = line.strip().removeprefix(BOM_UTF8)
    starts = code.endswith(_OPENS) and _STARTS.match(code)
    return bool(starts) and all(string[1] for string in _STRING.finditer(code))


def _is_message(line: bytes) -> bool:
    """Returns whether the line is a whole message. A part of a message can look the same, but is indented."""
    return line.startswith((b"{", BOM_UTF8)) and line.rstrip().endswith(b"}") and bool(parse_messages(line))
