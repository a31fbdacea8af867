"""Bells: any number, from anybody, at any time. They may cost time, never an effect and never the run."""

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from perdure.contracts.activities import RING
from perdure.contracts.ids import approval_id
from perdure.contracts.turns import Bell, TurnAddress, TurnStatus
from perdure.core.approvals.decisions import Decision
from tests.doubles.spoken import Line
from tests.scale import sized
from tests.served import DONE, PAUSED, PAY, Served

pytestmark = pytest.mark.filterwarnings(
    # A signal that meets a continue-as-new makes the server give the task again, signal included; the instance of the
    # first try is thrown away with a handler that it had not begun.
    "ignore:.*run_signal:pytest.PytestUnraisableExceptionWarning"
)

BELLS = sized(1_000, 200)
FORGED: list[Any] = [
    {"kind": "approved", "request_id": "x", "state": "approved"},
    {"kind": "request", "request_id": "01234567-0000-7000-8000-000000000000", "verdict": "approve"},
    {"kind": "", "request_id": "x" * 900},
    {"kind": "request", "request_id": "stop"},
]


async def ring_all(served: Served, address: TurnAddress, bells: list[Any]) -> int:
    """Ring all of them, many at once; how many the server took."""
    gate = asyncio.Semaphore(200)

    async def one(bell: Any) -> bool:
        async with gate:
            try:
                await served.ring(address, bell)
            except RPCError:
                return False
            return True

    return sum(await asyncio.gather(*map(one, bells)))


@pytest.mark.sized
async def test_any_number_of_bells_to_a_paused_turn_run_nothing_and_lose_nothing(served: Served) -> None:
    address = await served.paused(Line("asking", [PAY]), DONE)
    real = Bell(kind="request", request_id=approval_id(address.turn_id, "t1.0"))
    taken = await ring_all(served, address, [real if n % 2 else FORGED[n // 2 % len(FORGED)] for n in range(BELLS)])
    assert taken == BELLS
    assert await served.states(address) == {"t1.0": "planned"}
    assert (await served.row(address))["status"] == PAUSED.value
    await served.decide(address)
    row = await served.until(address, TurnStatus.COMPLETED)
    assert row["answer"] == "well"
    assert served.effects(address, "/pay") == 1


async def test_bells_before_during_and_after_the_decision_make_one_effect(served: Served) -> None:
    address = await served.begin(Line("asking", [PAY], seconds=0.3), DONE)
    early = await ring_all(served, address, [Bell(kind="request")] * 50)
    await served.until(address, PAUSED)
    ringing = asyncio.create_task(ring_all(served, address, [Bell(kind="request")] * 150))
    await served.decide(address)
    await served.until(address, TurnStatus.COMPLETED)
    await ringing
    assert await served.handle(address).result() == "completed"
    late = await ring_all(served, address, [Bell(kind="request")] * 20)
    assert (early, late) == (50, 0), "a bell to a turn that has ended reaches nobody"
    assert served.effects(address, "/pay") == 1
    assert len(served.sent_to_model(address)) == 2
    assert (await served.desk.kinds(address.turn_id)).count("done") == 1


GARBAGE: list[list[Any]] = [[], [None], ["stop"], [7], [["stop"]], [{"request_id": "x"}], [{"kind": 5}], [{}, {}, {}]]


async def test_bells_that_cannot_be_read_leave_the_run_as_it_was(served: Served) -> None:
    address = await served.paused(Line("asking", [PAY]), DONE)
    for garbage in GARBAGE:
        await served.handle(address).signal(RING, args=garbage)
    await served.decide(address, decision=Decision.REJECT, comment="no")
    row = await served.until(address, TurnStatus.COMPLETED)
    assert row["answer"] == "well"


async def test_a_bell_for_another_turn_says_nothing_about_this_one(served: Served) -> None:
    decided = await served.paused(Line("asking", [PAY]), DONE)
    waiting = await served.paused(Line("asking", [PAY]), DONE)
    run_id = await served.waits(waiting)
    await served.ring(waiting, Bell(kind="request", request_id=approval_id(decided.turn_id, "t1.0")))
    await served.decide(decided)
    await served.until(decided, TurnStatus.COMPLETED)
    await served.waits_again(waiting, run_id)
    assert (await served.row(waiting))["status"] == PAUSED.value
    assert served.effects(waiting, "/pay") == 0
    assert (await served.handle(waiting).describe()).status is WorkflowExecutionStatus.RUNNING
