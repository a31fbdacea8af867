"""Every row of every route table: exactly these nodes run, in this order, and it ends like this."""

import asyncio
import json
from copy import deepcopy

import pytest

from perdure.contracts.values import canonical_json
from perdure.graph.spec import Outcome, Switch, Topology
from tests.topologies.observed import observed
from tests.topologies.rows import Row, run_leg, run_row
from tests.topologies.specs.every import COMPILED, ROWS, SPECS, TOPOLOGIES


@pytest.mark.parametrize(("name", "row"), ROWS, ids=[f"{name}: {row.name}" for name, row in ROWS])
async def test_a_row_runs_exactly_its_nodes_and_ends_as_it_says_each_time(name: str, row: Row) -> None:
    compiled = COMPILED[name]
    state, ports = await run_row(compiled, row)
    assert [one.recorded.trace() for one in ports] == [leg.trace.split() for leg in row.legs]
    assert [one.script.unread() for one in ports] == [[] for _ in row.legs]
    assert state["status"] == row.legs[-1].status
    error = state["error"]
    assert (error["code"] if isinstance(error, dict) else "") == row.error
    assert compiled.topology.outcome(state) is not Outcome.RUNNING
    assert json.loads(canonical_json(state)) == state
    assert set(state) == {field.name for field in compiled.topology.state.fields}
    for events in (one.recorded.events for one in ports):
        started, ended = (
            [data["node"] for kind, data in events if kind == f"node_{what}"] for what in ("start", "end")
        )
        assert sorted(map(str, started)) == sorted(map(str, ended))
    assert state["current_node"] == ended[-1], "S0-11; of branches side by side the one that stands last"
    again, other_ports = await run_row(compiled, row)
    assert canonical_json(again) == canonical_json(state)
    assert [one.recorded.events for one in other_ports] == [one.recorded.events for one in ports]


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


async def test_a_run_leaves_its_start_as_it_was_and_a_pause_names_a_status_that_means_waiting() -> None:
    for name, row in ROWS:
        state = COMPILED[name].topology.state.initial(**row.initial)
        for leg in row.legs:
            before = deepcopy(state)
            after, _ = await run_leg(COMPILED[name], state, leg)
            assert state == before
            state = after
            if leg is not row.legs[-1]:
                assert COMPILED[name].topology.outcome(state) is Outcome.AWAITING
                assert state["pending_requests"]


async def test_all_rows_at_once_end_as_they_do_alone() -> None:
    together = await asyncio.gather(*(run_row(COMPILED[name], row) for name, row in ROWS))
    for (name, row), (state, ports) in zip(ROWS, together, strict=True):
        alone, _ = await run_row(COMPILED[name], row)
        assert state == alone
        assert [one.recorded.trace() for one in ports] == [leg.trace.split() for leg in row.legs]
