"""A child's output as lines: any bytes, any length, without ever stopping the child."""

import asyncio
from collections.abc import AsyncIterator

_LONGEST_LINE_BYTES = 32 * 1024
"""Longer lines are cut into pieces: asyncio's own readline() raises there, and the child would block on a full pipe."""


async def read_lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Lines without their ends, until the stream ends; undecodable bytes become replacement characters."""
    held = b""
    while chunk := await stream.read(65_536):
        *whole, held = (held + chunk).split(b"\n")
        for line in whole:
            for piece in _pieces(line):
                yield _text(piece)
        while len(held) >= _LONGEST_LINE_BYTES:
            yield _text(held[:_LONGEST_LINE_BYTES])
            held = held[_LONGEST_LINE_BYTES:]
    if held:
        yield _text(held)


def _pieces(line: bytes) -> list[bytes]:
    return [line[at : at + _LONGEST_LINE_BYTES] for at in range(0, max(len(line), 1), _LONGEST_LINE_BYTES)]


def _text(line: bytes) -> str:
    return line.rstrip(b"\r").decode("utf-8", "replace")
