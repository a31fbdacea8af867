"""The connection to Valkey or Redis. If it is lost, no work of its callers fails."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from typing import Any, TypeVar

import structlog
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.client import PubSub
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from perdure.store.valkey_batches import SharedConnection

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
_LOST = (RedisError, OSError, TimeoutError)


@cache
def _sha_of(script: str) -> str:
    """Returns the name under which Valkey keeps a loaded script."""
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


def _count_cancellations() -> int:
    """Returns how many times this task was cancelled."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


class Valkey:
    """A client that returns None if Valkey is unavailable."""

    def __init__(self, client: Redis) -> None:
        self.client = client
        self._shared = SharedConnection(self._new_connection)
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

    def _new_connection(self) -> AbstractConnection:
        connection: AbstractConnection = self.client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        return connection

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
        except _LOST as error:
            self._note_loss(error)
            return None
        self._note_answer()
        return answer

    async def run_script(self, script: str, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:
        """Runs a Lua script over the shared connection and returns its response. Loads it first if Valkey does not
        have it.

        Raises: RedisError, OSError, TimeoutError.
        """
        command = "EVALSHA", _sha_of(script), len(keys), *keys, *arguments
        try:
            return await self._shared.execute(*command)
        except NoScriptError:  # Valkey was restarted, or its scripts were flushed.
            await self._shared.execute("SCRIPT LOAD", script)
            return await self._shared.execute(*command)

    def send(self, *command: str | int) -> None:
        """Sends a command over the shared connection without waiting for its response. While Valkey is unavailable,
        the command is dropped."""
        if time.monotonic() >= self._rests_until:
            self._shared.execute(*command).add_done_callback(self._note_sent)

    def _note_sent(self, response: "asyncio.Future[Any]") -> None:
        if response.cancelled():
            return
        error = response.exception()
        if error is None:
            self._note_answer()
        else:
            self._note_loss(error)

    def _note_loss(self, error: BaseException) -> None:
        self._rests_until = time.monotonic() + _REST_SECONDS
        if not self._degraded:
            self._degraded = True
            log.warning(
                "valkey.lost", error=type(error).__name__, effect="live tokens are paused; answers are not affected"
            )

    def _note_answer(self) -> None:
        if self._degraded:
            self._degraded = False
            log.info("valkey.recovered")

    async def responds(self, seconds: float) -> bool:
        """Returns whether Valkey responds to a ping within `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                return bool(await self.client.ping())
        except (RedisError, OSError, TimeoutError):
            return False

    async def close(self) -> None:
        """Closes all connections. Commands that were sent without waiting are sent first."""
        await self._shared.close()
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
