"""One read for all who ask the same at the same moment: readers of one conversation are woken by one bell.

Invariant: an answer comes from a read that began after it was asked for, so nobody misses what woke them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SharedReads(Generic[K, V]):
    """Reads by key. 210 readers of one busy conversation saturated a core with reads of their own (measured)."""

    def __init__(self, read: Callable[[K], Awaitable[V]]) -> None:
        self._read = read
        self._not_begun: dict[K, asyncio.Task[V]] = {}

    async def get(self, key: K) -> V:
        """The answer for `key`; raises what the read raises."""
        task = self._not_begun.get(key)
        if task is None:
            task = self._not_begun[key] = asyncio.create_task(self._run(key))
            task.add_done_callback(_seen)
        # A reader that goes away must not take the answer away from the others.
        return await asyncio.shield(task)

    async def _run(self, key: K) -> V:
        await asyncio.sleep(0)  # everybody whom the bell woke asks in this turn of the loop
        del self._not_begun[key]
        return await self._read(key)


def _seen(task: "asyncio.Task[V]") -> None:
    """An error that nobody is left to hear is not reported as forgotten."""
    if not task.cancelled():
        task.exception()
