"""kill -9 at three points of twenty turns each, on a stack of real processes."""

import pytest

from tests.acceptance.kill_matrix import Outcome, run
from tests.acceptance.running import RunningStack

TURNS = 20
RECOVERY_SECONDS = 8.0
"""The bar: new worker up to done, 95 of 100 turns."""


@pytest.mark.timeout(300)
async def test_every_turn_survives_kill_9_with_one_effect_and_one_transcript(stack: RunningStack) -> None:
    outcomes: list[Outcome] = await run(stack, TURNS)
    assert [fault for outcome in outcomes for fault in outcome.faults] == []
    assert [len(outcome.seconds) for outcome in outcomes] == [TURNS] * len(outcomes)
    slow = {outcome.point: outcome.quantile(0.95) for outcome in outcomes}
    assert all(seconds < RECOVERY_SECONDS for seconds in slow.values()), slow
