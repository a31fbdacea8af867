"""Bells that tell readers to look again: one Valkey subscription and one poll of Postgres a process, shared by all.

A bell never carries data and may ring for nothing. The poll is the fallback: an event is noticed within POLL_SECONDS
even where every wake-up was lost, and the subscription's loss only makes tokens come in steps of that length.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager, suppress
from typing import Generic, TypeVar

import structlog
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from perdure.store.database import Database
from perdure.store.events.event_log import last_seqs
from perdure.store.events.live import WOKEN_BY_EVENTS, channel
from perdure.store.valkey import Valkey, messages, subscribed

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


# --- One read for all who ask the same at the same moment: readers of one conversation are woken by one bell.
# Invariant: an answer comes from a read that began after it was asked for, so nobody misses what woke them.

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


# --- When something in a tenant's queue of approvals has changed: one look at the head of its audit chain, shared by
# all who wait for that.
# Every act on an approval is audited in its own transaction, so the chain's head moves with each of them; it moves for
# other acts too, and a reader may be woken for nothing. It is asked for twice a second, and only while somebody reads.

LOOK_SECONDS = 0.5
_HEAD = "SELECT seq FROM audit_heads WHERE tenant_id = current_setting('perdure.tenant')"


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
