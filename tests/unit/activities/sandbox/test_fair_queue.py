"""The fair queue: so many at once, each tenant in turn, and no place lost."""

import asyncio

import pytest

from perdure.activities.sandbox.pool import FairQueue


async def settle() -> None:
    """Let every task go as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def entry_order(at_once: int, arrivals: str) -> str:
    """The order in which tenants of one letter get in, where each leaves before the next comes in."""
    queue = FairQueue(at_once)
    order: list[str] = []

    async def come(tenant_id: str) -> None:
        await queue.enter(tenant_id)
        order.append(tenant_id)

    tasks = [asyncio.create_task(come(tenant_id)) for tenant_id in arrivals]
    await settle()
    assert len(order) == min(at_once, len(arrivals))
    for _ in arrivals:
        queue.leave()
        await settle()
    await asyncio.gather(*tasks)
    return "".join(order)


@pytest.mark.parametrize(("at_once", "arrivals", "order"), [
    (1, "aaaab", "aabaa"), (1, "aaabbc", "aabcab"), (2, "aaaabb", "aaabab"), (3, "ab", "ab"), (1, "", ""),
])  # fmt: skip
async def test_each_tenant_gets_its_turn_however_much_another_queues(at_once: int, arrivals: str, order: str) -> None:
    assert await entry_order(at_once, arrivals) == order


async def test_a_caller_that_stops_waiting_takes_no_place() -> None:
    queue = FairQueue(1)
    await queue.enter("a")
    waiting = [asyncio.create_task(queue.enter(tenant_id)) for tenant_id in "bcd"]
    await settle()
    waiting[0].cancel()
    await settle()
    queue.leave()
    await settle()
    assert [task.done() for task in waiting] == [True, True, False]
    queue.leave()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_place_given_to_a_cancelled_caller_passes_to_the_next() -> None:
    queue = FairQueue(1)
    await queue.enter("a")
    first, second = (asyncio.create_task(queue.enter(tenant_id)) for tenant_id in "bc")
    await settle()
    queue.leave()
    first.cancel()
    await asyncio.wait_for(second, 30)
    with pytest.raises(asyncio.CancelledError):
        await first
    queue.leave()
    await asyncio.wait_for(queue.enter("d"), 30)
