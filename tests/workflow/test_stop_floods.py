"""Any number of forged stops: one look at a time, nothing cancelled, and a true one is heard. And what is no bell."""

import asyncio

import pytest

from perdure.contracts.turns import Bell, TurnAddress, TurnStatus
from tests.doubles.spoken import Line
from tests.replay.recording import run_of
from tests.replay.stopping import CONFIRM, silent
from tests.served import DONE, PAY, Served

pytestmark = pytest.mark.filterwarnings(
    # As in test_bells.py: a signal that meets a continue-as-new makes the server give the task again.
    "ignore:.*run_signal:pytest.PytestUnraisableExceptionWarning"
)

STOP = Bell(kind="stop")
FLOOD = 1_000


async def flood(served: Served, address: TurnAddress) -> None:
    gate = asyncio.Semaphore(64)

    async def one() -> None:
        async with gate:
            await served.ring(address, STOP)

    await asyncio.gather(*(one() for _ in range(FLOOD)))


@pytest.mark.soak
async def test_a_flood_of_forged_stops_is_looked_after_once_a_task_at_most_and_hides_no_stop(served: Served) -> None:
    address = await silent(served)
    await flood(served, address)
    assert (await served.row(address))["status"] == "running"
    await served.stop(address)
    await served.until(address, TurnStatus.STOPPED)
    assert await served.handle(address).result() == "stopped"
    (history,) = await served.runs(address)
    types = [event["eventType"] for event in run_of(history).events]
    tasks, looks = types.count("EVENT_TYPE_WORKFLOW_TASK_COMPLETED"), run_of(history).called.count(CONFIRM)
    assert types.count("EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED") == FLOOD + 1
    assert 1 <= looks <= tasks < FLOOD
    assert len(types) <= FLOOD + 4 * tasks + 20, "the signals, the tasks that took them, one marker a look"


@pytest.mark.soak
async def test_a_paused_turn_under_a_flood_of_forged_stops_keeps_its_approval_and_short_histories(
    served: Served,
) -> None:
    address = await served.paused(Line("asking", [PAY]), DONE)
    await flood(served, address)
    approvals = "SELECT status FROM approvals WHERE turn_id = $1"
    assert await served.desk.value(approvals, address.turn_id) == "pending"
    await served.decide(address)
    row = await served.until(address, TurnStatus.COMPLETED, TurnStatus.STOPPED)
    assert (row["status"], row["answer"]) == ("completed", "well")
    assert served.effects(address, "/pay") == 1
    longest = max(len(history.events) for history in await served.runs(address))
    assert longest <= FLOOD + 100
