"""An approved call is withdrawn as a worker reserves it: it runs, or it is withdrawn, never both."""

import asyncio
import random
from collections import Counter

import pytest

from perdure.activities.tools import ToolActivities
from perdure.contracts.calls import CallState, ToolCall
from perdure.contracts.errors import CallerError
from perdure.contracts.ids import approval_id, effect_key
from perdure.contracts.turns import TurnAddress
from perdure.core.approvals.decisions import Decider
from perdure.store.approvals.assignments import withdraw
from tests.harness import Harness
from tests.scale import PATIENCE_SECONDS, Clocked, sized
from tests.served import MANY

pytestmark = pytest.mark.soak

RACES = sized(1_000, 60)
AT_ONCE = 8
MOST_DELAY_SECONDS = 0.012
"""About what either takes: so neither is always first."""


async def withdrawn(harness: Harness, address: TurnAddress, delay_seconds: float) -> str:
    """Withdraw it after a moment; what that was answered."""
    await asyncio.sleep(delay_seconds)
    reviewer = harness.people["reviewer"]
    try:
        async with harness.db.transaction("local") as tx:
            person = Decider(reviewer.user_id, reviewer.roles, reviewer.name)
            await withdraw(tx, approval_id(address.turn_id, "t1.0"), person, "no more")
    except CallerError as error:
        return error.code
    return "withdrawn"


async def executed(harness: Harness, call: ToolCall, delay_seconds: float) -> str:
    """Run it after a moment; what that came to."""
    await asyncio.sleep(delay_seconds)
    return (await harness.activity(ToolActivities(harness.deps).run, call)).state.value


@pytest.mark.timeout(PATIENCE_SECONDS)
async def test_an_approved_call_is_withdrawn_or_runs_and_never_both(harness: Harness) -> None:
    chance, gate, seen = random.Random(9), asyncio.Semaphore(AT_ONCE), Counter[tuple[str, str, str, int]]()

    async def race(number: int) -> None:
        async with gate:
            address = await harness.approved(("pay", {"amount": number + 1}), caps=MANY)
            call = await harness.tool_call(address, "t1.0")
            said, came_to = await asyncio.gather(
                withdrawn(harness, address, chance.uniform(0, MOST_DELAY_SECONDS)),
                executed(harness, call, chance.uniform(0, MOST_DELAY_SECONDS)),
            )
            paid = harness.world.effects.count(("/pay", effect_key(address.turn_id, "t1.0")))
            seen[said, came_to, (await harness.approval_row(address))["status"], paid] += 1

    with Clocked() as clocked:
        await asyncio.gather(*(race(number) for number in range(RACES)))
    ran = ("already_running", CallState.DONE.value, "done", 1)
    taken_back = ("withdrawn", CallState.DENIED.value, "withdrawn", 0)
    print(f"\nwithdrawal: {RACES} races, {seen[ran]} ran, {seen[taken_back]} withdrawn, {clocked}")
    assert set(seen) == {ran, taken_back}, "one or the other, each came first at times"
