"""Wake signals for readers of streams. A process has one Valkey subscription and one poll of Postgres, which all
readers share.

A signal carries no data and can be spurious. The poll is the fallback: it detects an event within `POLL_SECONDS` even
if every signal is lost. If the subscription is lost, tokens arrive only at that interval.
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
from perdure.store.valkey import Valkey, read_messages, subscribe

POLL_SECONDS = 1.0
_OWN_CHANNEL = "perdure:wakes"
"""Keeps the connection subscribed while there are no readers."""

log = structlog.get_logger(__name__)
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
LOOK_SECONDS = 0.5


class ReaderWake:
    """One reader's wake signal. `events` is set if durable events may be new; tokens may be new at each signal."""

    def __init__(self) -> None:
        self.events = True
        self._signaled = asyncio.Event()

    def wake(self, *, events: bool) -> None:
        """Wakes the reader."""
        self.events = self.events or events
        self._signaled.set()

    def clear(self) -> bool:
        """Clears the signal before the reader looks. Returns whether durable events may be new."""
        self._signaled.clear()
        events, self.events = self.events, False
        return events

    async def wait(self, seconds: float) -> bool:
        """Waits for the next signal; returns False on timeout."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._signaled.wait(), seconds)
        return self._signaled.is_set()


class ConversationWakes:
    """The wake signals of this process, by conversation."""

    def __init__(self, database: Database, valkey: Valkey) -> None:
        self._database = database
        self._valkey = valkey
        self._readers: dict[str, set[ReaderWake]] = defaultdict(set)
        self._tenants: dict[str, str] = {}
        self._seen: dict[str, int] = {}
        self._subscription: PubSub | None = None
        self.closing = False
        """True if the process is about to end: readers disconnect, then reconnect to the next process with their last
        id."""

    def close(self) -> None:
        """Disconnects all readers."""
        self.closing = True
        self._wake_all(events=False)

    @asynccontextmanager
    async def listen(self, tenant_id: str, conversation_id: str) -> AsyncIterator[ReaderWake]:
        """Provides a wake signal for a conversation while the block runs."""
        reader = ReaderWake()
        readers = self._readers[conversation_id]
        readers.add(reader)
        self._tenants[conversation_id] = tenant_id
        if len(readers) == 1:
            await self._send_command("subscribe", conversation_id)
        try:
            yield reader
        finally:
            readers.discard(reader)
            if not readers and self._readers.get(conversation_id) is readers:
                for book in (self._readers, self._tenants, self._seen):
                    book.pop(conversation_id, None)
                await self._send_command("unsubscribe", conversation_id)

    async def run(self) -> None:
        """Delivers wake signals until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._again_and_again(self._follow_valkey))
            group.create_task(self._again_and_again(self._poll_postgres))

    async def _again_and_again(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except (RedisError, OSError, *Database.outages):
                pass  # The other source continues, and users of the lost one report the outage.
            except Exception:
                log.exception("wakes.unexpected_error")  # The readers of every stream depend on these loops.
            await asyncio.sleep(POLL_SECONDS)

    async def _send_command(self, verb: str, conversation_id: str) -> None:
        # An error here means that the connection failed. The follower detects that too and subscribes again.
        if self._subscription is not None:
            with suppress(RedisError, OSError, TimeoutError, RuntimeError):
                await getattr(self._subscription, verb)(channel(conversation_id))

    async def _follow_valkey(self) -> None:
        async with subscribe(self._valkey, _OWN_CHANNEL, *map(channel, self._readers)) as subscription:
            self._subscription = subscription
            try:
                # Readers that arrived during the subscription are missing from it. Later ones add themselves.
                if late := {*map(channel, self._readers)} - subscription.channels.keys():
                    await subscription.subscribe(*sorted(late))
                self._wake_all(events=False)
                async for message in read_messages(subscription):
                    self._wake(str(message["channel"]).rpartition(":")[2], message["data"] == WOKEN_BY_EVENTS)
            finally:
                # It is cleared before the connection closes, because a command on a closed subscription would reconnect
                # it.
                self._subscription = None

    async def _poll_postgres(self) -> None:
        if self._subscription is None:
            self._wake_all(events=False)
        watched: dict[str, list[str]] = defaultdict(list)
        for conversation_id, tenant_id in self._tenants.items():
            watched[tenant_id].append(conversation_id)
        for tenant_id, conversation_ids in watched.items():
            async with self._database.transaction(tenant_id) as tx:
                seqs = await last_seqs(tx, conversation_ids)
            for conversation_id, seq in seqs.items():
                if self._seen.get(conversation_id) != seq and conversation_id in self._tenants:
                    self._seen[conversation_id] = seq
                    self._wake(conversation_id, events=True)

    def _wake(self, conversation_id: str, events: bool) -> None:
        for reader in self._readers.get(conversation_id, ()):
            reader.wake(events=events)

    def _wake_all(self, *, events: bool) -> None:
        for conversation_id in list(self._readers):
            self._wake(conversation_id, events)


class SharedReads(Generic[K, V]):
    """Shares reads by key. Measured: 210 readers of one busy conversation saturated a core with separate reads.

    Readers that one signal wakes together share a read.

    Invariant: each answer comes from a read that began after its request. Otherwise a reader could miss the change that
    woke it.
    """

    def __init__(self, read: Callable[[K], Awaitable[V]]) -> None:
        self._read = read
        self._not_begun: dict[K, asyncio.Task[V]] = {}

    async def get(self, key: K) -> V:
        """Returns the value for `key`. Raises: the errors of the read."""
        task = self._not_begun.get(key)
        if task is None:
            task = self._not_begun[key] = asyncio.create_task(self._run(key))
            task.add_done_callback(_retrieve_error)
        # Canceling one reader must not cancel the shared read.
        return await asyncio.shield(task)

    async def _run(self, key: K) -> V:
        await asyncio.sleep(0)  # All readers woken by one signal add their requests in this loop iteration.
        del self._not_begun[key]
        return await self._read(key)


def _retrieve_error(task: "asyncio.Task[V]") -> None:
    """Marks the error as retrieved, so that asyncio does not log it if no reader is left."""
    if not task.cancelled():
        task.exception()


_HEAD = "SELECT seq FROM audit_heads WHERE tenant_id = current_setting('perdure.tenant')"


class ReviewChanges:
    """The audit heads of the tenants that have readers in this process. One poll of the head of a tenant's audit chain
    serves all readers. Every action on an approval is audited in its own transaction, so each moves the head. Other
    actions move it too, so a reader can be woken for nothing. The poll runs twice a second, and only while there are
    readers."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._readers: Counter[str] = Counter()
        self._heads: dict[str, int] = {}
        self._moved = asyncio.Event()

    async def run(self) -> None:
        """Polls until cancelled. While Postgres is unavailable, no change is reported."""
        while True:
            for tenant_id in [tenant for tenant, readers in self._readers.items() if readers > 0]:
                with suppress(OSError, TimeoutError, *Database.outages):
                    await self._read_head(tenant_id)
            await asyncio.sleep(LOOK_SECONDS)

    async def _read_head(self, tenant_id: str) -> None:
        async with self._database.transaction(tenant_id) as tx:
            head: int = await tx.fetchval(_HEAD) or 0
        if self._heads.get(tenant_id) != head:
            self._heads[tenant_id] = head
            self._moved.set()
            self._moved = asyncio.Event()

    async def heads(self, tenant_id: str, quiet_seconds: float) -> AsyncGenerator[int | None]:
        """Yields the head at first and whenever it changes, and None after `quiet_seconds` without a change."""
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
