"""A Valkey subscription that is known to stand: one that is silent is asked, and one that does not answer is lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from store.valkey import Valkey

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
