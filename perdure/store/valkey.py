"""The connection to Valkey or Redis. If it is lost, no work of its callers fails."""

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
"""The wait for a free connection. It does not depend on Valkey's health, so it can be longer."""
_REST_SECONDS = 2.0
"""No caller waits for Valkey for this long after a failure. Otherwise a server that never responds would slow each call
of a stream to its timeout."""

log = structlog.get_logger(__name__)
_SILENCE_SECONDS = 10.0
"""A subscription that is silent for this long is pinged."""


def _count_cancellations() -> int:
    """Returns how many times this task was cancelled."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


class Valkey:
    """A client that returns None if Valkey is unavailable."""

    def __init__(self, client: Redis) -> None:
        self.client = client
        self._rests_until = 0.0
        self._degraded = False

    @classmethod
    def connect(cls, url: str, *, max_connections: int = 32) -> "Valkey":
        """Returns a client that connects on first use. If all of its `max_connections` are in use, callers
        wait for one.

        redis-py's default pool raises beyond 100 connections instead. Nothing is retried, because an append whose
        response was lost may have been done.
        """
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=max_connections,
            timeout=_POOL_SECONDS,
            socket_timeout=_TIMEOUT_SECONDS,
            socket_connect_timeout=_TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
            protocol=2,
        )
        return cls(Redis.from_pool(pool))

    async def attempt(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Runs `work` and returns its result. Returns None if Valkey is unavailable or was within the last 2
        seconds.

        Raises: CancelledError if the task was cancelled meanwhile.
        """
        if time.monotonic() < self._rests_until:
            return None
        before = _count_cancellations()
        try:
            answer = await work()
            if _count_cancellations() > before:
                # redis-py lost the cancellation: Python 3.11's `wait_for`, around its sends, drops one that arrives
                # together with the response. A stop would have no effect (measured: one in five calls that were
                # cancelled during the send).
                raise asyncio.CancelledError
        except (RedisError, OSError, TimeoutError) as error:
            self._rests_until = time.monotonic() + _REST_SECONDS
            if not self._degraded:
                self._degraded = True
                log.warning(
                    "valkey.lost", error=type(error).__name__, effect="live tokens are paused; answers are not affected"
                )
            return None
        if self._degraded:
            self._degraded = False
            log.info("valkey.recovered")
        return answer

    async def responds(self, seconds: float) -> bool:
        """Returns whether Valkey responds to a ping within `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                return bool(await self.client.ping())
        except (RedisError, OSError, TimeoutError):
            return False

    async def close(self) -> None:
        """Closes all connections."""
        await self.client.aclose()


@asynccontextmanager
async def subscribe(valkey: Valkey, *channels: str) -> AsyncIterator[PubSub]:
    """Subscribes to these channels while the block runs. A silent subscription is pinged, and one that does not respond
    is lost. Raises: RedisError, OSError, TimeoutError."""
    # Confirmations are not ignored, because redis-py would return None for each, as it does for silence. When two
    # readers subscribed at the same moment, the second one then looked like a lost connection. All tokens of the next
    # second were late.
    subscription = valkey.client.pubsub()
    try:
        await subscription.subscribe(*channels)
        yield subscription
    finally:
        with suppress(RedisError, OSError, TimeoutError):
            await subscription.aclose()  # type: ignore[no-untyped-call]


async def read_messages(subscription: PubSub) -> AsyncIterator[dict[str, Any]]:
    """Yields the new messages of a subscription.

    Raises: RedisError, OSError, TimeoutError if the subscription is lost.
    """
    pinged = False
    while True:
        _leave_if_cancelled()
        message = await subscription.get_message(timeout=_SILENCE_SECONDS)
        _leave_if_cancelled()
        if message is not None and message["type"] == "message":
            yield message
        if message is None and pinged:
            raise TimeoutError("no answer on the subscription")
        pinged = message is None
        if pinged:
            await subscription.ping()


def _leave_if_cancelled() -> None:
    """Raises a cancellation that was swallowed. Python 3.11's `wait_for`, which redis-py uses to send, drops one if its
    work completes in the same moment (cpython#86296). About one in fifty workers that were stopped right after their
    start never stopped."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
