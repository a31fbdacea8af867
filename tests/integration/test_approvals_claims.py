"""A claim is renewed for an hour at most: then it is the turn of others, and of the fallback reviewer."""

import asyncio

import pytest

from perdure.contracts.approvals import RequestRef
from perdure.contracts.errors import CallerError
from perdure.store.approvals import assignments
from perdure.store.approvals.review import fall_back
from perdure.store.database import Database
from tests.desk import Desk
from tests.integration.council import Council, convened
from tests.integration.test_cold_load import BLOCKED


@pytest.fixture(scope="module")
async def council(desk: Desk) -> Council:
    return await convened(desk)


async def claimed(council: Council, request: RequestRef, by: str, seconds: int = 900) -> str:
    """`done`, or the refusal's code."""
    try:
        async with council.desk.db.transaction("local") as tx:
            await assignments.claim(tx, request.request_id, council.who(by), seconds)
    except CallerError as refused:
        return refused.code
    return "done"


async def later(council: Council, request: RequestRef, seconds: int) -> None:
    """Time passes."""
    back = f"interval '{seconds} seconds'"
    await council.set(request, f"claimed_until = claimed_until - {back}, claimed_since = claimed_since - {back}")


async def test_renewals_keep_others_away_for_an_hour_and_no_longer(council: Council, relay: Database) -> None:
    _, request = await council.asked("watched")
    await council.set(request, "fallback_at = clock_timestamp()")
    for _ in range(4):
        assert await claimed(council, request, "ann") == "done"
        await later(council, request, 880)
    assert await claimed(council, request, "ann") == "done"
    row = await council.row(request)
    assert (row["claimed_until"] - row["claimed_since"]).total_seconds() == 3_600
    await later(council, request, 100)
    assert await claimed(council, request, "ann") == "claimed_too_long"
    async with relay.transaction("local") as tx:
        assert await fall_back(tx) == 1
    assert str((await council.row(request))["assignee"]) == council.desk.people["carl"].user_id


async def test_giving_it_back_or_on_does_not_begin_a_new_lease(council: Council) -> None:
    _, request = await council.asked("plain")
    assert await claimed(council, request, "ann") == "done"
    await later(council, request, 800)
    since = (await council.row(request))["claimed_since"]
    async with council.desk.db.transaction("local") as tx:
        await assignments.release(tx, request.request_id, council.who("ann"))
    assert await claimed(council, request, "ann") == "done"
    assert (await council.row(request))["claimed_since"] == since
    async with council.desk.db.transaction("local") as tx:
        await assignments.reassign(tx, request.request_id, council.who("ann"), "bob", "")
    assert await claimed(council, request, "ann") == "done"
    assert (await council.row(request))["claimed_since"] == since


async def test_after_a_break_or_after_somebody_else_it_is_a_new_lease(council: Council) -> None:
    _, request = await council.asked("plain")
    assert await claimed(council, request, "ann", 3_600) == "done"
    await later(council, request, 3_600)
    assert await claimed(council, request, "ann") == "claimed_too_long"
    assert await claimed(council, request, "bob", 60) == "done"
    await later(council, request, 60)
    assert await claimed(council, request, "ann", 3_600) == "done"
    await later(council, request, 3_900)
    assert await claimed(council, request, "ann", 3_600) == "done"
    assert await council.audited(request) == ["opened", "claimed", "claimed", "claimed", "claimed"]


async def test_a_role_that_is_lost_while_an_act_waits_for_the_turn_counts_no_more(council: Council) -> None:
    address, request = await council.asked("plain")
    try:
        async with council.desk.db.transaction("local", address.turn_id):
            waiting = asyncio.create_task(claimed(council, request, "ann"))
            for _ in range(1_000):
                if await council.desk.value(BLOCKED):
                    break
                await asyncio.sleep(0.01)
            await council.roles("ann", "requester")
        assert await waiting == "role_required"
    finally:
        await council.roles("ann", "reviewer")
