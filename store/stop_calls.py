"""Stops, called out to the workers through Valkey. A call that is lost costs a second: the turn's bell comes too."""

from collections.abc import AsyncGenerator
from contextlib import suppress

from redis.exceptions import RedisError

from store.valkey import Valkey

CHANNEL = "perdure:stops"
"""What is called out is the turn's id."""
_SILENCE_SECONDS = 10.0
"""A subscription that is silent for this long is asked whether it still stands."""


async def heard(valkey: Valkey) -> AsyncGenerator[str, None]:
    """The ids of turns that were asked to stop, from now on.

    Raises: RedisError, OSError, TimeoutError where the subscription is lost.
    """
    subscription = valkey.client.pubsub(ignore_subscribe_messages=True)
    try:
        await subscription.subscribe(CHANNEL)
        asked = False
        while True:
            message = await subscription.get_message(timeout=_SILENCE_SECONDS)
            if message is not None and message["type"] == "message":
                yield str(message["data"])
            if message is None and asked:
                raise TimeoutError("no answer on the subscription")
            asked = message is None
            if asked:
                await subscription.ping()
    finally:
        with suppress(RedisError, OSError, TimeoutError):
            await subscription.aclose()  # type: ignore[no-untyped-call]
