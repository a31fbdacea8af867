"""Polling for what no event announces."""

import asyncio
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, TypeVar, overload

T = TypeVar("T")


@overload
async def until(look: Callable[[], Awaitable[T]], seconds: float = 30.0) -> T: ...
@overload
async def until(look: Callable[[], T], seconds: float = 30.0) -> T: ...
async def until(look: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Waits until `look` returns something true and returns it; tries every 10 ms. Raises AssertionError."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        found = look()
        if isawaitable(found):
            found = await found
        if found:
            return found
        assert asyncio.get_running_loop().time() < deadline, f"it never came: {found!r}"
        await asyncio.sleep(0.01)
