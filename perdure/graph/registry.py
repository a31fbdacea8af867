"""The topologies that ship, as values. This module does not import LangGraph, so that the API and the setup run without
it."""

from typing import Final

from perdure.contracts.errors import CallerError
from perdure.graph.spec import Topology
from perdure.graph.topologies.clarify_solve.nodes import NODES as CLARIFY_NODES
from perdure.graph.topologies.clarify_solve.nodes import VIZ_NODES
from perdure.graph.topologies.clarify_solve.spec import clarify_solve
from perdure.graph.topologies.context_assembly.nodes import NODES as ASSEMBLY_NODES
from perdure.graph.topologies.context_assembly.spec import context_assembly
from perdure.graph.topologies.decision_hub.nodes import NODES as HUB_NODES
from perdure.graph.topologies.decision_hub.spec import decision_hub
from perdure.graph.topologies.skill_pipeline.nodes import NODES
from perdure.graph.topologies.skill_pipeline.spec import skill_pipeline
from perdure.graph.topologies.tool_loop.nodes import NODES as LOOP_NODES
from perdure.graph.topologies.tool_loop.spec import tool_loop

TOPOLOGIES: Final[tuple[Topology, ...]] = (
    skill_pipeline(NODES),
    context_assembly(ASSEMBLY_NODES),
    tool_loop(LOOP_NODES),
    clarify_solve(CLARIFY_NODES, VIZ_NODES),
    decision_hub(HUB_NODES),
)

_BY_NAME: Final = {one.name: one for one in TOPOLOGIES}


def names() -> tuple[str, ...]:
    """Returns the names of all topologies, in the order above."""
    return tuple(_BY_NAME)


def spec(name: str) -> Topology:
    """Returns the topology `name`.

    Raises: CallerError 404 `unknown_topology`.
    """
    if name not in _BY_NAME:
        raise CallerError(
            "unknown_topology",
            f"There is no topology `{name[:80]}`; GET /v1/topologies lists all topologies.",
            status=404,
        )
    return _BY_NAME[name]
