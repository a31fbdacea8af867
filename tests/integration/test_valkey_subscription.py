"""A subscription of Valkey whose channels come and go with readers."""

import asyncio
from contextlib import suppress

from perdure.local import DataParts
from perdure.store.valkey import Valkey, messages, subscribed


async def test_readers_that_come_and_go_do_not_make_a_subscription_look_silent(parts: DataParts) -> None:
    assert parts.redis_url is not None
    valkey = Valkey.connect(parts.redis_url)
    try:
        async with subscribed(valkey, "own") as subscription:
            for number in range(3):
                await subscription.subscribe(f"reader-{number}")
            await subscription.unsubscribe("reader-0")
            await valkey.client.publish("reader-2", "look")
            async with asyncio.timeout(60):
                message = await anext(messages(subscription))
        assert (message["channel"], message["data"]) == ("reader-2", "look")
    finally:
        await valkey.close()


class Deaf:
    """A subscription on which a cancel is lost, as it may be in Python 3.11's `wait_for`."""

    def __init__(self) -> None:
        self.asked = 0
        self.waits = asyncio.Event()

    async def get_message(self, timeout: float) -> None:
        """Nothing, and no cancel."""
        self.asked += 1
        self.waits.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(timeout)

    async def ping(self) -> None:
        """Answered by nobody."""


async def test_a_reader_whose_cancel_was_lost_on_the_way_ends_all_the_same() -> None:
    deaf = Deaf()

    async def read() -> None:
        async for _ in messages(deaf):  # type: ignore[arg-type]
            pass

    reading = asyncio.create_task(read())
    await deaf.waits.wait()
    reading.cancel()
    await asyncio.wait({reading}, timeout=5)
    assert reading.cancelled() and deaf.asked == 1
