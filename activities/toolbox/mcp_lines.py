"""The lines of a server, of which one may be longer than is read: then it is told whose answer it was, and no more.

A line that is too long is passed over, so that the lines behind it still count. Whose answer it was is read from its
first and last bytes, which is exact for the ways in which servers write an answer: its number comes before the result
or is the last but for the version. Of any other line nobody knows who waits for it.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

from activities.toolbox.mcp_wire import MOST_MESSAGE_BYTES

MOST_SKIPPED_BYTES = 8 * MOST_MESSAGE_BYTES
_SHOWN_BYTES = 512
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"\s*'
_NUMBER = rb'"id"\s*:\s*(-?[0-9]{1,18}|"[^"\\]{1,200}")\s*'
_ANSWER = rb'"(?:result|error)"\s*:'
_BEGINS = re.compile(
    rb"\s*\{\s*(?:" + _VERSION + rb",\s*)?(?:" + _NUMBER + rb",\s*(?:" + _VERSION + rb",\s*)?)?" + _ANSWER
)
_ENDS = re.compile(rb",\s*" + _NUMBER + rb"(?:,\s*" + _VERSION + rb")?\}\s*\Z")


@dataclass(frozen=True, slots=True)
class TooLong:
    """A line that was passed over."""

    answers: int | str
    """The number of the request that it answers."""


class Unreadable(Exception):
    """A line is too long, and nobody knows whose answer it is, or it does not end."""


async def lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes | TooLong]:
    """The lines up to the end of the stream, whose limit says what is too long.

    Raises: Unreadable.
    """
    head, tail, skipped_bytes = b"", b"", 0
    while True:
        try:
            line = await stream.readuntil()
        except asyncio.LimitOverrunError as overrun:
            piece = await stream.readexactly(overrun.consumed)
            head, tail = head or piece[:_SHOWN_BYTES], piece[-_SHOWN_BYTES:]
            skipped_bytes += len(piece)
            if skipped_bytes > MOST_SKIPPED_BYTES or not _BEGINS.match(head):
                raise Unreadable from None
            continue
        except asyncio.IncompleteReadError as end:
            line = b"" if skipped_bytes else end.partial
        if not line:
            return
        yield TooLong(_number(head, tail + line)) if skipped_bytes else line
        head, tail, skipped_bytes = b"", b"", 0


def _number(head: bytes, tail: bytes) -> int | str:
    """Raises: Unreadable where it cannot be told."""
    begins, ends = _BEGINS.match(head), _ENDS.search(tail[-_SHOWN_BYTES:])
    told = (begins and begins[1]) or (ends and ends[1])
    if not told:
        raise Unreadable
    number: int | str = json.loads(told)
    return number
