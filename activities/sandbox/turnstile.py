"""Who runs next: so many at once, and among those who wait each tenant in turn, whatever one of them piles up."""

import asyncio
from collections import OrderedDict, deque


class Turnstile:
    """Lets `at_once` callers in. For one event loop."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """In the order of their turns; no empty queues."""

    async def enter(self, tenant_id: str) -> None:
        """Wait for a place; each needs one `leave`, unless this was cancelled."""
        if self._free > 0:
            self._free -= 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant_id, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        """Give the place to the next tenant's first."""
        while self._waiting:
            tenant_id, queue = self._waiting.popitem(last=False)
            place = queue.popleft()
            if queue:
                self._waiting[tenant_id] = queue  # behind all the others
            if not place.done():
                place.set_result(None)
                return
        self._free += 1
