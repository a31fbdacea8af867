"""The five topologies: their manifests and pictures, and every row of every route table, which runs
exactly its nodes, in this order, and ends as it says."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perdure.contracts.approvals import PauseKind
from perdure.contracts.values import canonical_json
from perdure.graph.compile import CompiledTopology, compile_topology
from perdure.graph.manifest import lines_of, manifest_of, mermaid_of
from perdure.graph.spec import FRESH, RENEWALS, Goto, NodeSpec, Outcome, Switch, Topology
from perdure.graph.validate import sources_of, validate
from tests.topologies.observed import observed
from tests.topologies.rows import Leg, Row, run_leg, run_row
from tests.topologies.specs.every import COMPILED, ROWS, SPECS, TOPOLOGIES
from tests.topologies.stand_ins import StandIn


@pytest.mark.parametrize("compiled", COMPILED.values(), ids=list(COMPILED))
def test_a_topology_is_valid_wired_as_its_manifest_says_and_resumes_where_it_pauses(compiled: CompiledTopology) -> None:
    topology = compiled.topology
    assert validate(topology) == ()
    assert compiled.wired_edges() == tuple(sorted({(line.source, line.target) for line in lines_of(topology)}))
    manifest = manifest_of(topology)
    assert json.loads(canonical_json(manifest)) == manifest
    resumes = [entry for entry in topology.entries if entry not in (FRESH, *RENEWALS)]
    assert bool(resumes) == any(node.pauses for node in topology.nodes)
    assert set(resumes) <= {kind.value for kind in PauseKind}


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_the_drawing_equals_the_reviewed_one(name: str) -> None:
    drawn = mermaid_of(manifest_of(TOPOLOGIES[name]))
    reviewed = (Path(__file__).parent / "golden" / f"{name}.mmd").read_text()
    assert drawn == reviewed, f"{name} is drawn differently now; look at it, then put it in {name}.mmd:\n{drawn}"


def with_triage(topology: Topology) -> Topology:
    """The clinical topology with a stage more, between the navigator and the end."""
    kept = tuple(edge for edge in topology.edges if sources_of(edge) != ("navigator",))
    return replace(
        topology,
        version=topology.version + 1,
        nodes=(*topology.nodes, NodeSpec("triage", StandIn("triage"))),
        edges=(*kept, Goto("navigator", "triage"), Goto("triage", "finalize")),
    )


async def test_an_edited_spec_changes_manifest_drawing_wiring_and_run_alike() -> None:
    before, after = TOPOLOGIES["context_assembly"], with_triage(TOPOLOGIES["context_assembly"])
    compiled = compile_topology(after)
    assert ("navigator", "triage") in compiled.wired_edges()
    assert ("navigator", "finalize") not in compiled.wired_edges()
    assert manifest_of(after) != manifest_of(before)
    drawn = mermaid_of(manifest_of(after))
    assert "triage --> finalize" in drawn
    assert "navigator --> finalize" not in drawn
    _, ports = await run_leg(compiled, after.state.initial(), Leg(""))
    assert ports.recorded.trace()[-3:] == ["navigator", "triage", "finalize"]


def test_a_manifest_names_entries_limits_and_what_the_statuses_mean_and_holds_a_nested_topology() -> None:
    manifest = manifest_of(TOPOLOGIES["skill_pipeline"])
    assert manifest["entries"] == {
        "fresh": "system_prompt_node",
        "approval": "resume_guard",
        "renewed": "initial_llm_call",
        "renewed_synthesis": "synthesis_llm_call",
    }
    assert manifest["limits"] == {"max_steps": 500, "max_iterations": 20, "continuations": 2}
    assert manifest["statuses"] == {"pending": "running", "awaiting_hitl": "awaiting"}
    assert manifest["version"] == 6
    nodes: Any = manifest_of(TOPOLOGIES["clarify_solve"])["nodes"]
    assert [node["sub"]["name"] for node in nodes if "sub" in node] == ["viz"]


@pytest.mark.parametrize(("name", "row"), ROWS, ids=[f"{name}: {row.name}" for name, row in ROWS])
async def test_each_row_runs_exactly_its_nodes_and_has_its_end_every_time(name: str, row: Row) -> None:
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
    assert state["current_node"] == ended[-1], "of parallel branches, the one that is drawn last"
    again, other_ports = await run_row(compiled, row)
    assert canonical_json(again) == canonical_json(state)
    assert [one.recorded.events for one in other_ports] == [one.recorded.events for one in ports]


@pytest.mark.parametrize("name", SPECS)
async def test_the_rows_of_a_topology_cover_every_label_of_every_router(name: str) -> None:
    topology, taken = observed(TOPOLOGIES[name])
    for row in SPECS[name].ROWS:
        await run_row(topology, row)
    assert taken == _labels(TOPOLOGIES[name])


def _labels(topology: Topology) -> set[tuple[str, str]]:
    inner = [node.run.topology for node in topology.nodes if not callable(node.run)]
    own = {(edge.source, label) for edge in topology.edges if isinstance(edge, Switch) for label in edge.targets}
    return own.union(*(_labels(one) for one in inner))


async def test_all_rows_run_in_parallel_end_as_they_do_alone() -> None:
    together = await asyncio.gather(*(run_row(COMPILED[name], row) for name, row in ROWS))
    for (name, row), (state, ports) in zip(ROWS, together, strict=True):
        alone, _ = await run_row(COMPILED[name], row)
        assert state == alone
        assert [one.recorded.trace() for one in ports] == [leg.trace.split() for leg in row.legs]
