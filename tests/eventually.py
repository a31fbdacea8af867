"""Polling for what no event announces."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, TypeVar, overload

T = TypeVar("T")
Errors = tuple[type[Exception], ...]


@overload
async def until(
    look: Callable[[], Awaitable[T | None]], seconds: float = 30.0, *, every: float = 0.01, despite: Errors = ()
) -> T: ...
@overload
async def until(
    look: Callable[[], T | None], seconds: float = 30.0, *, every: float = 0.01, despite: Errors = ()
) -> T: ...
async def until(look: Callable[[], Any], seconds: float = 30.0, *, every: float = 0.01, despite: Errors = ()) -> Any:
    """Waits until `look` returns something true and returns it. Raises AssertionError.

    It tries again after `every` seconds, later up to 50 ms, also if `look` raises one of the errors in `despite`.
    """
    begun = time.monotonic()
    while True:
        try:
            found = look()
            if isawaitable(found):
                found = await found
        except despite as error:
            found = None
            assert time.monotonic() < begun + seconds, f"it never came: {error!r}"
        if found:
            return found
        assert time.monotonic() < begun + seconds, f"it never came: {found!r}"
        await asyncio.sleep(max(every, min((time.monotonic() - begun) / 10, 0.05)))


def wait_until(look: Callable[[], T], seconds: float, what: object) -> T:
    """Waits, without an event loop, until `look` returns something true. Raises AssertionError with `what`."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found
