"""Shared reads: one for all who ask at once, and never an answer older than its question."""

import asyncio

import pytest

from perdure.store.events.subscriptions import SharedReads


async def test_all_who_ask_in_the_same_moment_share_one_read() -> None:
    reads = []

    async def read(key: str) -> str:
        reads.append(key)
        await asyncio.sleep(0.01)
        return key.upper()

    shared = SharedReads(read)
    answers = await asyncio.gather(*[shared.get("a") for _ in range(50)], shared.get("b"))
    assert answers == ["A"] * 50 + ["B"]
    assert sorted(reads) == ["a", "b"]


async def test_who_asks_while_a_read_runs_gets_a_later_one() -> None:
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


async def test_a_reader_that_leaves_does_not_take_the_answer_away() -> None:
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


async def test_an_error_reaches_everybody_and_the_next_read_starts_afresh() -> None:
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
