"""The connection to Valkey or Redis, which may be lost at any time without anybody's work failing."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import structlog
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

T = TypeVar("T")

_TIMEOUT_SECONDS = 1.0
_POOL_SECONDS = 5.0
"""Waiting for a free connection says nothing about Valkey, so it may take longer."""
_REST_SECONDS = 2.0
"""After a failure nobody waits for Valkey again for this long: a black hole must not slow a stream to its time-out."""

log = structlog.get_logger(__name__)


def _cancellations() -> int:
    """How often this task has been asked to end."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


class Valkey:
    """A client whose failures are answers."""

    def __init__(self, client: Redis) -> None:
        self.client = client
        self._rests_until = 0.0
        self._degraded = False

    @classmethod
    def connect(cls, url: str, *, most: int = 32) -> "Valkey":
        """A client that connects when it is first used; callers beyond `most` at once wait for a connection.

        redis-py's default pool raises beyond a hundred instead. Nothing is retried: an append whose answer was lost
        may have been done.
        """
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=most,
            timeout=_POOL_SECONDS,
            socket_timeout=_TIMEOUT_SECONDS,
            socket_connect_timeout=_TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
            protocol=2,
        )
        return cls(Redis.from_pool(pool))

    async def attempt(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Do `work`; None where Valkey is out of reach or was a moment ago."""
        if time.monotonic() < self._rests_until:
            return None
        before = _cancellations()
        try:
            answer = await work()
            if _cancellations() > before:
                # redis-py lost it: Python 3.11's wait_for, around its sends, drops a cancellation that comes together
                # with the answer, and a stop would go unheard (measured: one call in five, cancelled while it sends).
                raise asyncio.CancelledError
        except (RedisError, OSError, TimeoutError) as error:
            self._rests_until = time.monotonic() + _REST_SECONDS
            if not self._degraded:
                self._degraded = True
                log.warning("valkey.lost", error=type(error).__name__, effect="live tokens pause, answers do not")
            return None
        if self._degraded:
            self._degraded = False
            log.info("valkey.back")
        return answer

    async def answers(self, seconds: float) -> bool:
        """Whether it answers a ping within `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                return bool(await self.client.ping())
        except (RedisError, OSError, TimeoutError):
            return False

    async def close(self) -> None:
        """Close every connection."""
        await self.client.aclose()


# --- A Valkey subscription that is known to stand: one that is silent is asked, and one that does not answer is lost.

_SILENCE_SECONDS = 10.0
"""A subscription that is silent for this long is asked whether it still stands."""


@asynccontextmanager
async def subscribed(valkey: Valkey, *channels: str) -> AsyncIterator[PubSub]:
    """A subscription to these channels, while the block runs. Raises: RedisError, OSError, TimeoutError."""
    # Confirmations are not ignored: redis-py would give None for each, which is what silence gives. Of two readers that
    # came within a moment the second then seemed to be a lost answer, and every token of the next second came late.
    subscription = valkey.client.pubsub()
    try:
        await subscription.subscribe(*channels)
        yield subscription
    finally:
        with suppress(RedisError, OSError, TimeoutError):
            await subscription.aclose()  # type: ignore[no-untyped-call]


async def messages(subscription: PubSub) -> AsyncIterator[dict[str, Any]]:
    """What is said on it, from now on.

    Raises: RedisError, OSError, TimeoutError where the subscription is lost.
    """
    asked = False
    while True:
        _leave_if_cancelled()
        message = await subscription.get_message(timeout=_SILENCE_SECONDS)
        _leave_if_cancelled()
        if message is not None and message["type"] == "message":
            yield message
        if message is None and asked:
            raise TimeoutError("no answer on the subscription")
        asked = message is None
        if asked:
            await subscription.ping()


def _leave_if_cancelled() -> None:
    """A cancel may be swallowed on the way: Python 3.11's `wait_for`, which redis-py sends with, does so where its work
    is done in the same moment (cpython#86296). A worker in some fifty that ended right after its start never did."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
