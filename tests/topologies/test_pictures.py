"""Manifests and pictures: drawn from the value that runs, so an edit of a spec shows in all of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from perdure.graph.compile import compile_topology
from perdure.graph.manifest import manifest_of, mermaid_of
from perdure.graph.spec import Goto, NodeSpec, Topology
from perdure.graph.validate import sources_of
from tests.topologies.rows import Leg, run_leg
from tests.topologies.specs.every import TOPOLOGIES
from tests.topologies.stand_ins import StandIn

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_the_picture_is_the_reviewed_one(name: str) -> None:
    drawn = mermaid_of(manifest_of(TOPOLOGIES[name]))
    reviewed = (GOLDEN / f"{name}.mmd").read_text()
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


async def test_an_edited_spec_changes_manifest_picture_wiring_and_run_alike() -> None:
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


def test_a_manifest_names_entries_limits_and_what_the_statuses_mean() -> None:
    manifest = manifest_of(TOPOLOGIES["skill_pipeline"])
    assert manifest["entries"] == {"fresh": "system_prompt_node", "approval": "resume_guard"}
    assert manifest["limits"] == {"max_steps": 500, "max_iterations": 20}
    assert manifest["statuses"] == {"pending": "running", "awaiting_hitl": "awaiting"}
    assert manifest["version"] == 3


def test_a_nested_topology_is_inside_its_node() -> None:
    nodes = manifest_of(TOPOLOGIES["clarify_solve"])["nodes"]
    assert isinstance(nodes, list)
    inner = [node["sub"] for node in nodes if isinstance(node, dict) and "sub" in node]
    assert [one["name"] for one in inner if isinstance(one, dict)] == ["viz"]
