"""Bells that tell readers to look again: one Valkey subscription and one poll of Postgres a process, shared by all.

A bell never carries data and may ring for nothing. The poll is the fallback: an event is noticed within POLL_SECONDS
even where every wake-up was lost, and the subscription's loss only makes tokens come in steps of that length.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import structlog
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from store.database import Database
from store.event_log import last_seqs
from store.live_keys import WOKEN_BY_EVENTS, channel
from store.subscription import messages, subscribed
from store.valkey import Valkey

POLL_SECONDS = 1.0
_OWN_CHANNEL = "perdure:wakes"
"""Keeps the connection subscribed while nobody listens."""

log = structlog.get_logger(__name__)


class Bell:
    """One reader's bell. `events` says that durable events may be new; tokens may be new whenever it rings."""

    def __init__(self) -> None:
        self.events = True
        self._rung = asyncio.Event()

    def ring(self, *, events: bool) -> None:
        """Make the reader look again."""
        self.events = self.events or events
        self._rung.set()

    def quiet(self) -> bool:
        """Forget the ringing so far, before looking; whether it rang for events."""
        self._rung.clear()
        events, self.events = self.events, False
        return events

    async def wait(self, seconds: float) -> bool:
        """Wait for the next ringing; False where there was none in time."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._rung.wait(), seconds)
        return self._rung.is_set()


class Wakes:
    """The bells of this process, by conversation."""

    def __init__(self, database: Database, valkey: Valkey) -> None:
        self._database = database
        self._valkey = valkey
        self._bells: dict[str, set[Bell]] = defaultdict(set)
        self._tenants: dict[str, str] = {}
        self._seen: dict[str, int] = {}
        self._subscription: PubSub | None = None
        self.closing = False
        """The process is about to end: readers leave, and come back to the next one with their last id."""

    def close(self) -> None:
        """Send every reader away."""
        self.closing = True
        self._ring_all(events=False)

    @asynccontextmanager
    async def listen(self, tenant_id: str, conversation_id: str) -> AsyncIterator[Bell]:
        """A bell for a conversation, while the block runs."""
        bell = Bell()
        bells = self._bells[conversation_id]
        bells.add(bell)
        self._tenants[conversation_id] = tenant_id
        if len(bells) == 1:
            await self._tell("subscribe", conversation_id)
        try:
            yield bell
        finally:
            bells.discard(bell)
            if not bells and self._bells.get(conversation_id) is bells:
                for book in (self._bells, self._tenants, self._seen):
                    book.pop(conversation_id, None)
                await self._tell("unsubscribe", conversation_id)

    async def run(self) -> None:
        """Ring bells until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._again_and_again(self._follow_valkey))
            group.create_task(self._again_and_again(self._poll_postgres))

    async def _again_and_again(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except (RedisError, OSError, *Database.outages):
                pass  # the other source goes on, and whoever uses the lost one says so
            except Exception:
                log.exception("wakes.unforeseen")  # readers of every stream depend on these loops
            await asyncio.sleep(POLL_SECONDS)

    async def _tell(self, verb: str, conversation_id: str) -> None:
        # A failure here is a failure of the connection, which the follower sees as well; it subscribes anew.
        if self._subscription is not None:
            with suppress(RedisError, OSError, TimeoutError, RuntimeError):
                await getattr(self._subscription, verb)(channel(conversation_id))

    async def _follow_valkey(self) -> None:
        async with subscribed(self._valkey, _OWN_CHANNEL, *map(channel, self._bells)) as subscription:
            self._subscription = subscription
            try:
                # Who came while that was under way has told nobody, and whoever comes from now on will.
                if late := {*map(channel, self._bells)} - subscription.channels.keys():
                    await subscription.subscribe(*sorted(late))
                self._ring_all(events=False)
                async for message in messages(subscription):
                    self._ring(str(message["channel"]).rpartition(":")[2], message["data"] == WOKEN_BY_EVENTS)
            finally:
                self._subscription = None  # before it is closed: one that is told something then connects once more

    async def _poll_postgres(self) -> None:
        if self._subscription is None:
            self._ring_all(events=False)
        watched: dict[str, list[str]] = defaultdict(list)
        for conversation_id, tenant_id in self._tenants.items():
            watched[tenant_id].append(conversation_id)
        for tenant_id, conversation_ids in watched.items():
            async with self._database.transaction(tenant_id) as tx:
                seqs = await last_seqs(tx, conversation_ids)
            for conversation_id, seq in seqs.items():
                if self._seen.get(conversation_id) != seq and conversation_id in self._tenants:
                    self._seen[conversation_id] = seq
                    self._ring(conversation_id, events=True)

    def _ring(self, conversation_id: str, events: bool) -> None:
        for bell in self._bells.get(conversation_id, ()):
            bell.ring(events=events)

    def _ring_all(self, *, events: bool) -> None:
        for conversation_id in list(self._bells):
            self._ring(conversation_id, events)
