"""What the engine adds to a node that makes no call."""

import time
from statistics import median

import pytest

from tests.topologies.rows import run_row
from tests.topologies.specs.every import COMPILED, SPECS

TURNS = 200


@pytest.mark.timed
async def test_a_node_that_makes_no_call_costs_less_than_half_a_millisecond() -> None:
    compiled, row = COMPILED["context_assembly"], SPECS["context_assembly"].ROWS[0]
    taken = []
    for _ in range(TURNS):
        began = time.perf_counter()
        _, (ports,) = await run_row(compiled, row)
        taken.append((time.perf_counter() - began) * 1e3 / len(ports.recorded.trace()))
    print(f"\na node that makes no call: p50 {median(taken):.3f} ms")
    assert median(taken) < 0.5
