"""Shared reads, never older than their question; wake signals against a Valkey whose subscription is held up."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from redis.asyncio.client import PubSub

from perdure.store.database import Database
from perdure.store.events.live import channel
from perdure.store.events.subscriptions import ConversationWakes, SharedReads
from perdure.store.valkey import Valkey


async def test_simultaneous_readers_share_one_query() -> None:
    reads = []

    async def read(key: str) -> str:
        reads.append(key)
        await asyncio.sleep(0.01)
        return key.upper()

    shared = SharedReads(read)
    assert await asyncio.gather(*[shared.get("a") for _ in range(50)], shared.get("b")) == ["A"] * 50 + ["B"]
    assert sorted(reads) == ["a", "b"]


async def test_a_reader_that_asks_during_a_query_gets_a_later_one() -> None:
    truth = "old"

    async def read(_: str) -> str:
        seen = truth
        await asyncio.sleep(0.02)
        return seen

    shared = SharedReads(read)
    first = asyncio.create_task(shared.get("a"))
    await asyncio.sleep(0.01)
    truth = "new"
    assert await shared.get("a") == "new"
    assert await first == "old"


async def test_a_reader_that_leaves_cancels_no_other_readers_query() -> None:
    async def read(key: str) -> str:
        await asyncio.sleep(0.01)
        return key

    shared = SharedReads(read)
    leaver = asyncio.create_task(shared.get("a"))
    stayer = asyncio.create_task(shared.get("a"))
    await asyncio.sleep(0.005)
    leaver.cancel()
    assert await stayer == "a"
    with pytest.raises(asyncio.CancelledError):
        await leaver


async def test_an_error_reaches_every_reader_and_the_next_query_starts_anew() -> None:
    broken = True

    async def read(key: str) -> str:
        if broken:
            raise OSError("away")
        return key

    shared = SharedReads(read)
    answers = await asyncio.gather(shared.get("a"), shared.get("a"), return_exceptions=True)
    assert [type(answer) for answer in answers] == [OSError, OSError]
    broken = False
    assert await shared.get("a") == "a"


class SlowSubscription:
    """The part of redis-py that `Wakes` uses: the first subscription takes until it is released."""

    def __init__(self) -> None:
        self.channels: dict[str, None] = {}
        self.begun, self.goes_on = asyncio.Event(), asyncio.Event()
        self.closing: Callable[[], object] = lambda: None

    async def subscribe(self, *names: str) -> None:
        self.begun.set()
        await self.goes_on.wait()
        self.channels |= dict.fromkeys(names)

    async def unsubscribe(self, *names: str) -> None:
        for name in names:
            self.channels.pop(name, None)

    async def get_message(self, timeout: float) -> None:
        """Never returns a message."""
        await asyncio.sleep(timeout)

    async def aclose(self) -> None:
        self.closing()


class Client:
    """A Valkey of which only the subscription is used."""

    def __init__(self, subscription: SlowSubscription) -> None:
        self._subscription = subscription

    def pubsub(self, **_: Any) -> PubSub:
        return cast(PubSub, self._subscription)


async def test_a_reader_that_comes_while_the_process_subscribes_is_subscribed_too() -> None:
    held = SlowSubscription()
    wakes = ConversationWakes(cast(Database, None), Valkey(cast(Any, Client(held))))
    following = asyncio.create_task(wakes._follow_valkey())
    told: list[object] = []
    held.closing = lambda: told.append(wakes._subscription)
    await held.begun.wait()
    async with wakes.listen("t", "late") as late:
        late.clear()
        held.goes_on.set()
        assert await late.wait(10), "and it looks for what it has missed"
        assert channel("late") in held.channels
        async with wakes.listen("t", "later"):
            assert channel("later") in held.channels
        assert channel("later") not in held.channels
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert told == [None], "a subscription that is being closed receives nothing"
