"""Whole turns under a day's budget: they end as limited and together overspend by one call at most, deaths included."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from temporalio.client import Client

from perdure.contracts.agents import DayLimits
from perdure.contracts.turns import ENDED, Kind, Routing, TurnAddress, TurnStatus
from perdure.core.budgets import TENANT
from perdure.local import DataParts
from perdure.store.budgets import set_day_limits
from tests.conftest import Urls
from tests.desk import Desk
from tests.doubles.spoken import HOLDS_TOKENS, Line
from tests.served import ALL_KINDS, Served, apart, serve
from tests.worker_process import worker_process

TURNS = 200
LIMIT = 1_000
"""Of the 2,000 tokens that the turns would use."""
FIRST = 8
"""Turns whose worker is killed; each then counts with all that it had reserved."""


async def limit_tenant(desk: Desk, limits: DayLimits) -> None:
    async with desk.db.transaction("local") as tx:
        await set_day_limits(tx, limits, desk.people["admin"].user_id)


async def today(desk: Desk) -> tuple[int, int]:
    """Used and held tokens of the tenant."""
    rows = await desk.rows("SELECT used_tokens, held_tokens FROM day_usage WHERE agent_id = $1", TENANT)
    return (rows[0]["used_tokens"], rows[0]["held_tokens"]) if rows else (0, 0)


async def until_busy(desk: Desk) -> None:
    """Wait until calls are under way."""
    for _ in range(6_000):
        if (await today(desk))[1] >= 4 * HOLDS_TOKENS:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the worker never worked")


@pytest.mark.soak
async def test_two_hundred_turns_on_one_days_budget_whose_worker_is_killed_overspend_by_less_than_one_call(
    desk: Desk, temporal: Client, urls: Urls, parts: DataParts
) -> None:
    served = apart(desk, temporal, Routing.compact())
    at = served.desk
    await limit_tenant(at, DayLimits(max_tokens=LIMIT))
    async with AsyncExitStack() as stack:
        await serve(stack, at, tuple(kind for kind in ALL_KINDS if kind is not Kind.LLM))
        turns = [await served.begin(Line("yes", seconds=2.0)) for _ in range(FIRST)]
        async with worker_process("model_worker", urls, parts, at.routing.llm) as process:
            await until_busy(at)
            process.kill()
            await process.wait()
        turns += [await served.begin(Line("yes", seconds=0.5)) for _ in range(TURNS - FIRST)]
        lost = (await today(at))[1]
        assert lost >= 4 * HOLDS_TOKENS, "it died with calls under way"
        async with worker_process("model_worker", urls, parts, at.routing.llm):
            rows = [await served.until(turn, *ENDED, seconds=150) for turn in turns]
    statuses = {row["status"] for row in rows}
    assert statuses == {"completed", "limited"}
    assert {row["problem"]["code"] for row in rows if row["status"] == "limited"} == {"day_token_budget_spent"}
    used, held = await today(at)
    counted = sum(row["input_tokens"] + row["output_tokens"] for row in rows)
    assert (used, held) == (counted, 0)
    answered = sum(1 for row in rows if row["status"] == "completed")
    assert used == 10 * answered + lost, "what was lost counts with all that it had reserved"
    assert LIMIT * 3 // 4 <= used < LIMIT + HOLDS_TOKENS, (
        "most of the budget was used, and not refused for reservations"
    )
    await limit_tenant(at, DayLimits())


async def test_a_limited_turn_says_so_once_and_its_conversation_goes_on_the_day_after(
    served: Served, desk: Desk
) -> None:
    await limit_tenant(desk, DayLimits(max_tokens=1))
    await desk.write("DELETE FROM day_usage")
    await desk.write("UPDATE model_calls SET started_at = started_at - interval '1 day'")
    first, row = await served.ended(Line("yes"))
    assert row["status"] == "completed", "one call may begin where nothing is used"
    conversation = first.conversation_id
    address, row = await served.ended(Line("never said"), conversation_id=conversation)
    assert (row["status"], row["problem"]["code"]) == ("limited", "day_token_budget_spent")
    kinds = await desk.kinds(address.turn_id)
    assert kinds.count("budget") == 1 and kinds[-2:] == ["workflow.error", "done"]
    assert await _data(desk, address, "budget") == {
        "code": "day_token_budget_spent",
        "message": row["problem"]["message"],
    }
    await desk.write("UPDATE day_usage SET day = day - 1")
    await desk.write("UPDATE model_calls SET started_at = started_at - interval '1 day'")
    _, row = await served.ended(Line("a new day"), conversation_id=conversation)
    assert (row["status"], row["answer"]) == ("completed", "a new day")
    await limit_tenant(desk, DayLimits())


async def _data(desk: Desk, address: TurnAddress, kind: str) -> object:
    return await desk.value("SELECT data FROM events WHERE turn_id = $1 AND kind = $2", address.turn_id, kind)


async def test_a_budget_that_is_spent_while_a_turn_waits_for_a_person_is_met_after_the_resume(
    served: Served, desk: Desk
) -> None:
    address = await served.paused(Line("may I?", [("pay", {})]), Line("paid"))
    await limit_tenant(desk, DayLimits(max_tokens=1))
    await served.decide(address)
    row = await served.until(address, *ENDED)
    assert (row["status"], row["problem"]["code"]) == (TurnStatus.LIMITED.value, "day_token_budget_spent")
    assert served.effects(address, "/pay") == 1, "what was approved has happened, and is in the record"
    await limit_tenant(desk, DayLimits())
