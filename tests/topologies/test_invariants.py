"""What holds for every topology and every route, whatever its nodes do."""

import asyncio
import json
from copy import deepcopy
from typing import Any

import pytest
from pydantic import JsonValue

from perdure.contracts.approvals import PauseKind
from perdure.contracts.values import canonical_json
from perdure.graph.compile import CompiledTopology
from perdure.graph.manifest import lines_of, manifest_of
from perdure.graph.spec import FRESH, Outcome, Sub
from perdure.graph.validate import validate
from tests.topologies.rows import Row, run_leg, run_row
from tests.topologies.specs.every import COMPILED, ROWS, TOPOLOGIES

each_topology = pytest.mark.parametrize("compiled", COMPILED.values(), ids=list(COMPILED))
each_row = pytest.mark.parametrize(("name", "row"), ROWS, ids=[f"{name}: {row.name}" for name, row in ROWS])


@each_topology
def test_the_validator_finds_no_fault(compiled: CompiledTopology) -> None:
    assert validate(compiled.topology) == ()


@each_topology
def test_the_manifest_has_exactly_the_edges_that_langgraph_runs(compiled: CompiledTopology) -> None:
    drawn = {(line.source, line.target) for line in lines_of(compiled.topology)}
    assert compiled.wired_edges() == tuple(sorted(drawn))


@each_topology
def test_the_manifest_is_json(compiled: CompiledTopology) -> None:
    manifest = manifest_of(compiled.topology)
    assert json.loads(canonical_json(manifest)) == manifest


@each_topology
def test_a_topology_that_can_pause_has_an_entry_to_come_back_by(compiled: CompiledTopology) -> None:
    topology = compiled.topology
    resumes = [entry for entry in topology.entries if entry != FRESH]
    assert bool(resumes) == any(node.pauses for node in topology.nodes)
    assert set(resumes) <= {kind.value for kind in PauseKind}


@each_row
async def test_the_same_row_twice_gives_the_same_events_and_the_same_state(name: str, row: Row) -> None:
    first, first_ports = await run_row(COMPILED[name], row)
    second, second_ports = await run_row(COMPILED[name], row)
    assert canonical_json(first) == canonical_json(second)
    assert [one.recorded.events for one in first_ports] == [one.recorded.events for one in second_ports]


@each_row
async def test_every_node_that_starts_also_ends_before_the_run_does(name: str, row: Row) -> None:
    _, ports = await run_row(COMPILED[name], row)
    for one in ports:
        open_nodes: list[JsonValue] = []
        for kind, data in one.recorded.events:
            if kind == "node_start":
                open_nodes.append(data["node"])
            else:
                open_nodes.remove(data["node"])
        assert open_nodes == []


@each_row
async def test_the_state_says_which_node_was_the_last_to_start_or_which_branch_stands_last(name: str, row: Row) -> None:
    """S0-11. Of branches that ran side by side the one that stands last in the topology, at whatever pace."""
    state, ports = await run_row(COMPILED[name], row)
    ended = [data["node"] for kind, data in ports[-1].recorded.events if kind == "node_end"]
    assert state["current_node"] == ended[-1]


@each_row
async def test_what_a_run_starts_from_is_left_as_it_was(name: str, row: Row) -> None:
    state = COMPILED[name].topology.state.initial(**row.initial)
    before = deepcopy(state)
    await run_leg(COMPILED[name], state, row.legs[0])
    assert state == before


@each_row
async def test_the_final_state_is_json_and_has_every_field(name: str, row: Row) -> None:
    state, _ = await run_row(COMPILED[name], row)
    assert json.loads(canonical_json(state)) == state
    assert set(state) == {field.name for field in COMPILED[name].topology.state.fields}


@each_row
async def test_every_run_ends_in_an_outcome(name: str, row: Row) -> None:
    state, _ = await run_row(COMPILED[name], row)
    assert COMPILED[name].topology.outcome(state) is not Outcome.RUNNING


async def test_all_rows_at_once_end_as_they_do_alone() -> None:
    alone = [await run_row(COMPILED[name], row) for name, row in ROWS]
    together = await asyncio.gather(*(run_row(COMPILED[name], row) for name, row in ROWS))
    for (state, ports), (other_state, other_ports) in zip(alone, together, strict=True):
        assert state == other_state
        assert [one.recorded.trace() for one in ports] == [one.recorded.trace() for one in other_ports]


async def test_no_run_uses_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> Any:
        raise AssertionError("a graph used a thread, which a workflow does not have")

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "run_in_executor", refuse)
    monkeypatch.setattr(loop, "call_soon_threadsafe", refuse)
    for name, row in ROWS:
        await run_row(COMPILED[name], row)


def test_the_specs_have_the_nodes_that_the_requirements_count() -> None:
    counted = {name: len(topology.nodes) for name, topology in TOPOLOGIES.items()}
    assert counted == {
        "skill_pipeline": 10,
        "context_assembly": 8,
        "tool_loop": 5,
        "decision_hub": 12,
        "clarify_solve": 12,
    }
    assert len([line for line in lines_of(TOPOLOGIES["context_assembly"]) if line.label != "approval"]) == 12
    assert [node.id for node in TOPOLOGIES["clarify_solve"].nodes if isinstance(node.run, Sub)] == [
        "viz_processing_branch"
    ]


def test_the_labels_of_the_clinical_edges_are_those_of_the_seed() -> None:
    marked = {
        (line.source, line.target): (line.kind, line.condition) for line in lines_of(TOPOLOGIES["context_assembly"])
    }
    assert marked == {
        ("START", "preflight"): ("ENTRY", ""),
        ("START", "navigator"): ("ENTRY", ""),  # the twelve, and where a turn comes back that waited for an approval
        ("preflight", "safety_intervention"): ("CONDITIONAL", "SAFETY_HIJACKED"),
        ("preflight", "assembly_gate"): ("CONDITIONAL", "NOT_SAFETY_HIJACKED"),
        ("safety_intervention", "finalize"): ("TERMINAL_PATH", ""),
        ("assembly_gate", "context_assembly"): ("PARALLEL_BRANCH", ""),
        ("assembly_gate", "empathy"): ("PARALLEL_BRANCH", ""),
        ("context_assembly", "context_format"): ("JOIN_INPUT", ""),
        ("empathy", "context_format"): ("JOIN_INPUT", ""),
        ("context_format", "navigator"): ("SEQUENCE", ""),
        ("context_format", "finalize"): ("TERMINAL_PATH", "ASSEMBLY_FAILED"),
        ("navigator", "finalize"): ("SEQUENCE", ""),
        ("finalize", "END"): ("EXIT", ""),
    }
