"""A block that a stop breaks off: at once, only that turn's, and nothing else is taken for a stop."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from perdure.activities import dependencies as stops_module
from perdure.activities.dependencies import Stops
from perdure.store.events import live
from perdure.store.valkey import Valkey


async def test_a_stop_ends_the_blocks_of_its_turn_and_no_other() -> None:
    stops, reached, ended = Stops(), asyncio.Barrier(4), []

    async def block(turn_id: str) -> bool:
        async with stops.interruptible(turn_id) as stop:
            await reached.wait()
            await asyncio.sleep(0.2 if turn_id == "other" else 60)
            ended.append(turn_id)
        return stop.stopped

    work = asyncio.gather(block("mine"), block("mine"), block("other"))
    await reached.wait()
    stops.stop("mine")
    stops.stop("mine")  # called out twice
    stops.stop("unknown")
    assert [*await asyncio.wait_for(work, 10)] == [True, True, False]
    assert ended == ["other"]


async def test_stops_are_received_again_after_any_loss_of_the_subscription(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[Exception | None] = [RuntimeError("unforeseen"), ConnectionError("lost"), None]
    monkeypatch.setattr(stops_module, "RECONNECT_SECONDS", 0.01)

    async def heard(valkey: Valkey) -> AsyncGenerator[str, None]:
        ended = ends.pop(0)
        if ended is not None:
            raise ended
        yield "mine"
        await asyncio.sleep(60)

    monkeypatch.setattr(live, "stop_signals", heard)
    stops = Stops()
    async with asyncio.timeout(30):
        async with stops.interruptible("mine") as stop:
            following = asyncio.create_task(stops.follow(Valkey.connect("redis://127.0.0.1:1")))
            await asyncio.sleep(60)
    assert stop.stopped and not following.done()
    following.cancel()


async def test_a_timeout_or_a_stop_after_the_block_is_no_stop() -> None:
    stops = Stops()
    with pytest.raises(TimeoutError):
        async with stops.interruptible("mine"):
            await asyncio.wait_for(asyncio.sleep(60), 0.01)
    async with stops.interruptible("mine") as stop:
        await asyncio.sleep(0)
    stops.stop("mine")
    await asyncio.sleep(0)
    assert not stop.stopped


async def test_a_cancellation_from_outside_stays_one() -> None:
    stops, began = Stops(), asyncio.Event()

    async def work() -> None:
        async with stops.interruptible("mine"):
            began.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
