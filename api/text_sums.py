"""Keeps the sums of users' texts up to date, beside the requests: quotas read them, and starting a turn waits for no
counter that others share.
"""

import asyncio
import time
from contextlib import suppress

import structlog

from store.database import Database
from store.quotas import SUM_SECONDS, sum_texts_of_tenant, sum_texts_of_user

_MOST_REMEMBERED = 10_000
_log = structlog.get_logger(__name__)


class TextSums:
    """Sums the texts of users who write, once a minute each."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._summed: dict[tuple[str, str], float] = {}
        self._tasks = set[asyncio.Task[None]]()

    def wrote(self, tenant_id: str, user_id: str) -> None:
        """Has the sums brought up to date, if that was not done within the last minute."""
        who, now = (tenant_id, user_id), time.monotonic()
        if now - self._summed.get(who, -SUM_SECONDS) < SUM_SECONDS:
            return
        if len(self._summed) >= _MOST_REMEMBERED:
            self._summed.clear()
        self._summed[who] = now
        task = asyncio.create_task(self._sum(tenant_id, user_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Ends what is under way; another process, or the next minute, does it."""
        for task in list(self._tasks):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _sum(self, tenant_id: str, user_id: str) -> None:
        try:
            async with self._db.transaction(tenant_id) as tx:
                await sum_texts_of_user(tx, user_id)
            async with self._db.transaction(tenant_id) as tx:
                await sum_texts_of_tenant(tx)
        except (*Database.outages, OSError) as error:
            _log.warning("texts_not_summed", error=type(error).__name__)
