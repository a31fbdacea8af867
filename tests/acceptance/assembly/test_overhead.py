"""What the engine adds to a node that makes no call, in CPU: the clock would count what else the machine does."""

import time
from dataclasses import dataclass
from statistics import median

import pytest

from perdure.contracts.messages import Patch
from perdure.graph.compile import compile_topology
from perdure.graph.ports import Ports
from perdure.graph.spec import FRESH, State
from perdure.graph.topologies.context_assembly.spec import StageId, context_assembly
from tests.scale import FULL
from tests.topologies.stand_ins import scripted_ports

pytestmark = pytest.mark.soak

TURNS = 200
MOST_MILLISECONDS = 0.5 if FULL else 2.0
"""The suite shares its caches and its cores."""


@dataclass(frozen=True, slots=True)
class Idle:
    patch: Patch

    async def __call__(self, state: State, ports: Ports) -> Patch:
        return self.patch


@pytest.mark.timed
async def test_a_node_that_makes_no_call_costs_less_than_half_a_millisecond() -> None:
    patches: dict[str, Patch] = {stage: {"completed_stages": [stage.value]} for stage in StageId}
    patches["preflight"]["safety_hijacked"] = False
    patches["finalize"]["status"] = "completed"
    compiled = compile_topology(context_assembly({stage: Idle(patch) for stage, patch in patches.items()}))
    taken, nodes = [], 7
    for _ in range(TURNS):
        ports = scripted_ports()
        began = time.process_time()
        await compiled.run(compiled.topology.state.initial(), FRESH, ports)
        taken.append((time.process_time() - began) * 1e3 / nodes)
        assert len(ports.recorded.trace()) == nodes
    print(f"\na node that makes no call: p50 {median(taken):.3f} ms of CPU")
    assert median(taken) < MOST_MILLISECONDS
