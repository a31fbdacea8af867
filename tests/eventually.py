"""Polling for what no event announces."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(look: Callable[[], Awaitable[T]], seconds: float = 30.0) -> T:
    deadline = asyncio.get_running_loop().time() + seconds
    while not (found := await look()):
        assert asyncio.get_running_loop().time() < deadline, f"it never came: {found!r}"
        await asyncio.sleep(0.02)
    return found


async def until(holds: Callable[[], bool], *, seconds: float = 30.0) -> None:
    """Waits until `holds` returns true, with a pause of 10 ms between two tries."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not holds():
        assert asyncio.get_running_loop().time() < deadline, "it never came to hold"
        await asyncio.sleep(0.01)
