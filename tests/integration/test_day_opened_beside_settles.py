"""A day's row that is opened while calls settle: each of them is counted in it once, and nobody waits crosswise."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from perdure.contracts.calls import ModelCall, ModelReply
from perdure.core.budgets import TENANT
from perdure.store import budgets
from tests.desk import Desk, until
from tests.doubles.spoken import Line
from tests.integration.test_day_budgets import ask, begun, limit_tenant, limited_agent, row, until_asked, used_by
from tests.scale import sized

_WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = $1"


@pytest.fixture(autouse=True)
async def uncounted(desk: Desk) -> AsyncIterator[None]:
    """Nobody has counted today yet; and nothing is limited afterwards."""
    await forget(desk)
    yield
    await forget(desk)


async def forget(desk: Desk) -> None:
    await desk.write("DELETE FROM day_limits")
    await desk.write("DELETE FROM day_usage")


async def until_waiting(desk: Desk, lock: str, *instead: asyncio.Task[ModelReply], seconds: float = 30) -> None:
    """Until somebody waits for a lock of this kind, or one of these is done."""
    for _ in range(int(seconds / 0.01)):
        if any(each.done() for each in instead) or await desk.value(_WAITING, lock):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"nobody waited for a lock of the kind {lock}")


@asynccontextmanager
async def settling(desk: Desk, call: ModelCall) -> AsyncIterator[asyncio.Task[ModelReply]]:
    """The attempt of a call that has recorded its reply and commits no sooner than this is left."""
    async with desk.db.transaction("local") as other:
        with desk.model.held("late"):
            running = asyncio.create_task(ask(desk, call))
            await until_asked(desk, call)
            await other.execute("SELECT FROM conversations WHERE id = $1 FOR UPDATE", call.address.conversation_id)
        await until_waiting(desk, "transactionid")
        yield running


async def test_a_settle_that_commits_while_the_days_row_is_opened_is_counted_in_it(desk: Desk) -> None:
    before = await used_by(desk)
    late, first = await begun(desk, "desk", Line("slow", waits="late", tokens=30)), await begun(desk, "desk")
    async with settling(desk, late) as running:
        await limit_tenant(desk, max_tokens=10**9)
        opening = asyncio.create_task(ask(desk, first))
        await until_waiting(desk, "advisory", opening)
    assert (await running).problem is None and (await opening).problem is None
    assert await used_by(desk) == before + 40
    assert (await row(desk, TENANT))[::2] == (before + 40, 0)


async def test_a_settle_that_comes_while_the_days_row_is_opened_waits_and_is_charged(desk: Desk) -> None:
    before = await used_by(desk)
    late = await begun(desk, "desk", Line("slow", waits="late", tokens=30))
    async with desk.db.transaction("local") as tx:
        with desk.model.held("late"):
            running = asyncio.create_task(ask(desk, late))
            await until_asked(desk, late)
            await budgets.open_day(tx, [TENANT])
        await until_waiting(desk, "advisory", running)
        assert await tx.fetchval("SELECT used_tokens FROM day_usage WHERE agent_id = ''") == before
    assert (await running).problem is None
    assert (await row(desk, TENANT))[::2] == (before + 30, 0)


async def test_who_takes_a_dead_call_over_opens_a_row_before_it_locks_the_one_that_others_want(desk: Desk) -> None:
    agent_id = await limited_agent(desk, max_tokens=10**9)
    dead = await begun(desk, agent_id, Line("slow", waits="taken over"))
    late = await begun(desk, agent_id, Line("slow", waits="late", tokens=30))
    with desk.model.held("taken over"):
        zombie = asyncio.create_task(ask(desk, dead, 1))
        await until_asked(desk, dead)
        async with settling(desk, late) as running:
            await limit_tenant(desk, max_tokens=10**9)
            over = asyncio.create_task(ask(desk, dead, 2))
            await until_waiting(desk, "advisory", over)
        await until(lambda: desk.model.requests[f"{dead.address.turn_id}.{dead.call_id}"] == 2)
    assert (await running).problem is None and (await over).problem is None
    assert (await zombie).problem is not None
    assert (await row(desk, agent_id))[::2] == (50, 0), "the dead one came back: it was paid too"
    assert (await row(desk, TENANT))[::2] == (await used_by(desk), 0)


@pytest.mark.sized
async def test_many_who_settle_and_open_at_once_lose_nothing(desk: Desk) -> None:
    for number in range(sized(5, 2)):
        await forget(desk)
        calls = [await begun(desk, "desk", Line("yes", seconds=0.02 * (place % 5))) for place in range(24)]
        limiting = asyncio.create_task(limited_soon(desk, 0.01 * number))
        replies = await asyncio.gather(*(ask(desk, call) for call in calls))
        await limiting
        assert {reply.problem for reply in replies} == {None}
        assert (await ask(desk, await begun(desk, "desk"))).problem is None, "it makes the row, if nobody has"
        assert (await row(desk, TENANT))[::2] == (await used_by(desk), 0)


async def limited_soon(desk: Desk, seconds: float) -> None:
    await asyncio.sleep(seconds)
    await limit_tenant(desk, max_tokens=10**9)
