"""When something in a tenant's queue of approvals has changed: one look at the head of its audit chain, shared by all
who wait for that.

Every act on an approval is audited in its own transaction, so the chain's head moves with each of them; it moves for
other acts too, and a reader may be woken for nothing. It is asked for twice a second, and only while somebody reads.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import suppress

import structlog

from store.database import Database

LOOK_SECONDS = 0.5
_HEAD = "SELECT seq FROM audit_heads WHERE tenant_id = current_setting('perdure.tenant')"

log = structlog.get_logger(__name__)


class ReviewChanges:
    """The heads of the tenants that somebody watches in this process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._readers: Counter[str] = Counter()
        self._heads: dict[str, int] = {}
        self._moved = asyncio.Event()

    async def run(self) -> None:
        """Look until cancelled; while Postgres is away nothing changes."""
        while True:
            for tenant_id in [tenant for tenant, readers in self._readers.items() if readers > 0]:
                with suppress(OSError, TimeoutError, *Database.outages):
                    await self._look(tenant_id)
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self, tenant_id: str) -> None:
        async with self._database.transaction(tenant_id) as tx:
            head: int = await tx.fetchval(_HEAD) or 0
        if self._heads.get(tenant_id) != head:
            self._heads[tenant_id] = head
            self._moved.set()
            self._moved = asyncio.Event()

    async def heads(self, tenant_id: str, quiet_seconds: float) -> AsyncGenerator[int | None]:
        """The head as it moves, the present one first; None after so much time without a move."""
        self._readers[tenant_id] += 1
        seen: int | None = None
        try:
            while True:
                moved, head = self._moved, self._heads.get(tenant_id)
                if head is not None and head != seen:
                    seen = head
                    yield head
                    continue
                try:
                    await asyncio.wait_for(moved.wait(), quiet_seconds)
                except TimeoutError:
                    yield None
        finally:
            self._readers[tenant_id] -= 1
