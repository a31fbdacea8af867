"""Signals that are early, doubled, late or forged: a turn hears them all, and its call runs once."""

import asyncio
import random
from collections.abc import Sequence

import pytest
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from perdure.contracts.activities import WAKE
from perdure.contracts.ids import approval_id, effect_key
from perdure.contracts.turns import TurnAddress, TurnStatus, WakeSignal
from perdure.temporal.workflow_client import is_workflow_missing
from tests.doubles.message_script import Line
from tests.scale import PATIENCE_SECONDS, Clocked, sized
from tests.served_turns import Served

pytestmark = pytest.mark.soak

TURNS = sized(20, 3)
DUPLICATES = sized(1_000, 60)
LATE = sized(100, 10)
FORGED = sized(100, 20)
AT_ONCE = 32


def forgeries(address: TurnAddress, other: TurnAddress) -> list[object]:
    """Signals that the notifier never sends, or sends only for another turn."""
    return [
        None,
        "approve",
        7,
        [],
        {},
        {"kind": "approved", "request_id": approval_id(address.turn_id, "t1.0"), "decision": "approve"},
        {"kind": "request", "request_id": approval_id(other.turn_id, "t1.0")},
        {"kind": ["request"], "request_id": {"args": {"amount": 1_000_000}}},
        {"kind": "request", "state": "approved", "args": {"amount": 1_000_000}},
        WakeSignal(kind="verdict", request_id="nobody"),
        WakeSignal(kind="stop"),
        {"kind": "stop", "request_id": approval_id(other.turn_id, "t1.0")},
    ]


async def send(served: Served, address: TurnAddress, bells: Sequence[object]) -> int:
    """Send them, many at once; how many found no run any more."""
    gate, gone = asyncio.Semaphore(AT_ONCE), 0

    async def one(bell: object) -> None:
        nonlocal gone
        async with gate:
            try:
                await served.handle(address).signal(WAKE, bell)
            except RPCError as error:
                assert is_workflow_missing(error), error
                gone += 1

    await asyncio.gather(*(one(bell) for bell in bells))
    return gone


@pytest.mark.timeout(PATIENCE_SECONDS)
async def test_repeated_late_and_forged_signals_have_at_most_one_effect(served: Served) -> None:
    harness, chance = served.harness, random.Random(3)
    line = [Line("paying", [("pay", {"amount": 1})]), Line("paid")]
    turns = await asyncio.gather(*(served.paused(*line) for _ in range(TURNS)))
    gone = 0
    with Clocked() as clocked:
        for number, address in enumerate(turns):
            other = turns[(number + 1) % TURNS]
            forged = [chance.choice(forgeries(address, other)) for _ in range(FORGED)]
            bell = WakeSignal(kind="request", request_id=approval_id(address.turn_id, "t1.0"))
            early = DUPLICATES // 10
            assert await send(served, address, [*forged, *[bell] * early]) == 0
            await served.until(address, TurnStatus.AWAITING_APPROVAL)
            assert served.effects(address, "/pay") == 0, "no signal is a verdict"
            _, note = await harness.decide(approval_id(address.turn_id, "t1.0"))
            gone += await send(served, address, [bell] * (DUPLICATES - early))
            assert note is not None
            await harness.deps.notifier.deliver_soon(note)
            await served.until(address, TurnStatus.COMPLETED)
            await served.handle(address).result()  # the run ends a moment after its turn
            gone += await send(served, address, [bell] * LATE)
    sent = TURNS * (DUPLICATES + LATE + FORGED)
    said = f"{sent} to {TURNS} turns ({DUPLICATES} doubled, {LATE} late, {FORGED} forged each), {gone} found no run"
    print(f"\nsignals: {said}; {clocked}")
    keys = [effect_key(address.turn_id, "t1.0") for address in turns]
    assert [harness.world.effects.count(("/pay", key)) for key in keys] == [1] * TURNS
    assert gone >= TURNS * LATE
    for address in turns:
        assert (await served.handle(address).describe()).status is WorkflowExecutionStatus.COMPLETED
        assert [text for _, text in await served.transcript(address)][-1] == "paid"
