"""What holds for every topology, whatever its nodes do."""

import json

import pytest

from perdure.contracts.approvals import PauseKind
from perdure.contracts.values import canonical_json
from perdure.graph.compile import CompiledTopology
from perdure.graph.manifest import lines_of, manifest_of
from perdure.graph.spec import FRESH, Sub
from perdure.graph.validate import validate
from tests.topologies.specs.every import COMPILED, TOPOLOGIES


@pytest.mark.parametrize("compiled", COMPILED.values(), ids=list(COMPILED))
def test_a_topology_is_valid_wired_as_its_manifest_says_and_can_be_resumed_where_it_pauses(
    compiled: CompiledTopology,
) -> None:
    topology = compiled.topology
    assert validate(topology) == ()
    assert compiled.wired_edges() == tuple(sorted({(line.source, line.target) for line in lines_of(topology)}))
    manifest = manifest_of(topology)
    assert json.loads(canonical_json(manifest)) == manifest
    resumes = [entry for entry in topology.entries if entry != FRESH]
    assert bool(resumes) == any(node.pauses for node in topology.nodes)
    assert set(resumes) <= {kind.value for kind in PauseKind}


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
