"""Stops, called out to the workers through Valkey. A call that is lost costs a second: the turn's bell comes too."""

from collections.abc import AsyncGenerator

from store.subscription import messages, subscribed
from store.valkey import Valkey

CHANNEL = "perdure:stops"
"""What is called out is the turn's id."""


async def heard(valkey: Valkey) -> AsyncGenerator[str, None]:
    """The ids of turns that were asked to stop, from now on.

    Raises: RedisError, OSError, TimeoutError where the subscription is lost.
    """
    async with subscribed(valkey, CHANNEL) as subscription:
        async for message in messages(subscription):
            yield str(message["data"])
