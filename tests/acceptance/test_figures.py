"""Figures that the stack must show, on real processes; each is printed with how busy others kept the machine."""

import asyncio
import time
from pathlib import Path

import pytest

from tests.acceptance.machine import Others
from tests.acceptance.running import RunningStack, running
from tests.acceptance.turns import Turns

SAMPLES = 100
BATCH = 25
"""Turns that wait at once: one user may have 50 that have not ended."""
WARM_UP = 3
DECISION_TO_CALL_SECONDS = 0.2
LOADED = 0.15
"""Others' share of the machine from which a figure may be their doing: the run is repeated, once, and whole."""
FIRST_ANSWER_SECONDS = 60.0
HEALTHY_SECONDS = 30.0
"""The bar is 6 s on a warm machine; five times that is allowed where others keep it busy."""


def quantile(ordered: list[float], share: float) -> float:
    """The `share` quantile of sorted values."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def _decision_to_call(turns: Turns, orders: range) -> list[float]:
    """Seconds from each decision to the start of its call. All wait first; then each is decided and ends, in turn."""
    ids = await turns.begin_all([f"Refund order {order}" for order in orders])
    assert await turns.until(ids, "awaiting_approval") == []
    for turn_id in ids:
        await turns.approve(turn_id)
        assert await turns.until([turn_id], "completed") == []
    waits = []
    for turn_id in ids:
        events = {event.kind: event.at for event in await turns.events(turn_id)}
        waits.append((events["tool.executing"] - events["tool.approved"]).total_seconds())
    return waits


async def _hundred(turns: Turns, first_order: int) -> tuple[float, float, float]:
    """p50 and p95 over 100 decisions, and others' share of the machine meanwhile."""
    waits: list[float] = []
    with Others() as others:
        for order in range(first_order, first_order + SAMPLES, BATCH):
            waits += await _decision_to_call(turns, range(order, order + BATCH))
    waits.sort()
    assert len(waits) == SAMPLES
    return quantile(waits, 0.5), quantile(waits, 0.95), others.share


@pytest.mark.timeout(300)
async def test_an_approved_call_starts_within_200_ms_of_its_decision(
    stack: RunningStack, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Turns(stack, "refunds") as turns:
        await _decision_to_call(turns, range(70_000, 70_000 + WARM_UP))
        for first_order in (71_000, 72_000):
            p50, p95, share = await _hundred(turns, first_order)
            said = f"decision to call, {SAMPLES}: p50 {p50 * 1000:.0f} ms, p95 {p95 * 1000:.0f} ms, others {share:.0%}"
            with capsys.disabled():
                print(f"\n{said} of the machine")
            if p95 < DECISION_TO_CALL_SECONDS or share < LOADED:
                break  # else others may be to blame: all hundred once more, and only they count
    assert p95 < DECISION_TO_CALL_SECONDS, said


async def _started(home: Path) -> tuple[float, float, float]:
    """Seconds from the command to all parts healthy and to the first answer, and others' share meanwhile."""
    with Others() as others:
        began = time.monotonic()
        starting = running(home)
        stack = await asyncio.to_thread(starting.__enter__)
        try:
            healthy = time.monotonic() - began
            async with Turns(stack, "refunds") as turns:
                turn_id = await turns.begin("/echo the first answer")
                assert await turns.until([turn_id], "completed") == []
                answered = time.monotonic() - began
                assert (await turns.read(turn_id))["answer"] == "the first answer"
        finally:
            await asyncio.to_thread(starting.__exit__, None, None, None)
    return healthy, answered, others.share


@pytest.mark.timeout(240)
async def test_a_fresh_folder_answers_its_first_turn_within_a_minute_and_a_used_one_is_up_sooner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("fresh", "used before"):
        healthy, answered, share = await _started(tmp_path / "home")
        said = f"start, folder {folder}: healthy {healthy:.1f} s, first answer {answered:.1f} s, others {share:.0%}"
        with capsys.disabled():
            print(f"\n{said} of the machine")
        assert healthy < HEALTHY_SECONDS and answered < FIRST_ANSWER_SECONDS, said
