"""A subscription of Valkey whose channels come and go with readers."""

import asyncio

from local import DataParts
from store.subscription import messages, subscribed
from store.valkey import Valkey


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
