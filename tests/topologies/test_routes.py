"""Every row of every route table: exactly these nodes run, in this order, and it ends like this."""

import pytest

from perdure.graph.spec import Switch, Topology
from tests.topologies.observed import observed
from tests.topologies.rows import Row, run_leg, run_row
from tests.topologies.specs.every import COMPILED, ROWS, SPECS, TOPOLOGIES

IDS = [f"{name}: {row.name}" for name, row in ROWS]


@pytest.mark.parametrize(("name", "row"), ROWS, ids=IDS)
async def test_a_row_runs_exactly_its_nodes_and_ends_as_it_says(name: str, row: Row) -> None:
    state, ports = await run_row(COMPILED[name], row)
    assert [one.recorded.trace() for one in ports] == [leg.trace.split() for leg in row.legs]
    assert [one.script.unread() for one in ports] == [[] for _ in row.legs]
    assert state["status"] == row.legs[-1].status
    error = state["error"]
    assert (error["code"] if isinstance(error, dict) else "") == row.error


@pytest.mark.parametrize("name", SPECS)
async def test_the_rows_of_a_table_take_every_label_of_every_switch(name: str) -> None:
    topology, taken = observed(TOPOLOGIES[name])
    for row in SPECS[name].ROWS:
        await run_row(topology, row)
    assert taken == _labels(TOPOLOGIES[name])


def _labels(topology: Topology) -> set[tuple[str, str]]:
    inner = [node.run.topology for node in topology.nodes if not callable(node.run)]
    own = {(edge.source, label) for edge in topology.edges if isinstance(edge, Switch) for label in edge.targets}
    return own.union(*(_labels(one) for one in inner))


async def test_a_paused_run_names_a_status_that_means_waiting() -> None:
    for name, row in ROWS:
        state = COMPILED[name].topology.state.initial(**row.initial)
        for leg in row.legs[:-1]:
            state, _ = await run_leg(COMPILED[name], state, leg)
            assert COMPILED[name].topology.outcome(state) == "awaiting"
            assert state["pending_requests"]
