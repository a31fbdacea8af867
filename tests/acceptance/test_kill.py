"""kill -9 at four points of a turn, many turns at each, on a stack of real processes."""

from pathlib import Path

import pytest

from tests.acceptance.counted_model import counted_stack
from tests.acceptance.kill_matrix import TABLE_HEAD, run
from tests.acceptance.machine import LOADED, Others, quantile
from tests.scale import FULL, sized

TURNS = sized(20, 3)
RECOVERY_SECONDS = 8.0
"""The bar: new worker up to done, 95 of 100 turns; of the sample three times as much where others load the machine."""


@pytest.mark.sized
@pytest.mark.timeout(300)
async def test_every_turn_survives_kill_9_with_one_effect_and_one_transcript(tmp_path: Path) -> None:
    with counted_stack(tmp_path) as (stack, double), Others() as others:
        outcomes = await run(stack, double, TURNS)
    print("", TABLE_HEAD, *(outcome.row() for outcome in outcomes), sep="\n")
    assert [fault for outcome in outcomes for fault in outcome.faults] == []
    assert [len(outcome.seconds) for outcome in outcomes] == [TURNS] * len(outcomes)
    slow = {outcome.point: quantile(outcome.seconds, 0.95) for outcome in outcomes}
    most = RECOVERY_SECONDS * (1 if FULL or others.share < LOADED else 3)
    assert all(seconds < most for seconds in slow.values()), slow
