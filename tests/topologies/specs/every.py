"""The five topologies, with their route tables."""

from perdure.graph.compile import CompiledTopology, compile_topology
from tests.topologies.rows import Row
from tests.topologies.specs import clarify_solve, context_assembly, decision_hub, skill_pipeline, tool_loop

SPECS = {
    "skill_pipeline": skill_pipeline, "context_assembly": context_assembly, "tool_loop": tool_loop,
    "decision_hub": decision_hub, "clarify_solve": clarify_solve,
}  # fmt: skip
TOPOLOGIES = {name: spec.topology() for name, spec in SPECS.items()}
COMPILED: dict[str, CompiledTopology] = {name: compile_topology(one) for name, one in TOPOLOGIES.items()}
ROWS: tuple[tuple[str, Row], ...] = tuple((name, row) for name, spec in SPECS.items() for row in spec.ROWS)
