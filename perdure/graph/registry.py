"""The topologies that ship, as values. This module does not import LangGraph, so that the API and the setup run without
it."""

from typing import Final

from perdure.contracts.errors import CallerError, InvariantBroken
from perdure.core.agents.toolsets import LOADED_TOOLSETS
from perdure.graph.spec import Topology
from perdure.graph.topologies.clarify_solve.nodes import NODES as CLARIFY_NODES
from perdure.graph.topologies.clarify_solve.nodes import VIZ_NODES
from perdure.graph.topologies.clarify_solve.spec import clarify_solve
from perdure.graph.topologies.context_assembly.nodes import NODES as ASSEMBLY_NODES
from perdure.graph.topologies.context_assembly.nodes import NODES_1 as ASSEMBLY_NODES_1
from perdure.graph.topologies.context_assembly.nodes import NODES_2 as ASSEMBLY_NODES_2
from perdure.graph.topologies.context_assembly.spec import context_assembly
from perdure.graph.topologies.decision_hub.nodes import NODES as HUB_NODES
from perdure.graph.topologies.decision_hub.spec import decision_hub
from perdure.graph.topologies.skill_pipeline.nodes import NODES, NODES_3, NODES_4, NODES_5, NODES_6
from perdure.graph.topologies.skill_pipeline.spec import skill_pipeline
from perdure.graph.topologies.tool_loop.nodes import NODES as LOOP_NODES
from perdure.graph.topologies.tool_loop.nodes import NODES_1 as LOOP_NODES_1
from perdure.graph.topologies.tool_loop.nodes import NODES_2 as LOOP_NODES_2
from perdure.graph.topologies.tool_loop.spec import tool_loop

TOPOLOGIES: Final[tuple[Topology, ...]] = (
    skill_pipeline(NODES),
    context_assembly(ASSEMBLY_NODES),
    tool_loop(LOOP_NODES),
    clarify_solve(CLARIFY_NODES, VIZ_NODES),
    decision_hub(HUB_NODES),
)

EARLIER: Final[tuple[Topology, ...]] = (
    skill_pipeline(NODES_3, version=3),
    skill_pipeline(NODES_4, version=4),
    skill_pipeline(NODES_5, version=5),
    skill_pipeline(NODES_6, version=6),
    tool_loop(LOOP_NODES_1, version=1),
    tool_loop(LOOP_NODES_2, version=2),
    context_assembly(ASSEMBLY_NODES_1, version=1),
    context_assembly(ASSEMBLY_NODES_2, version=2),
    clarify_solve(CLARIFY_NODES, VIZ_NODES, version=1),
)
"""The earlier versions that open turns may have. A version is removed when no turn of it can be open."""

_BY_NAME: Final = {one.name: one for one in TOPOLOGIES}
_BY_VERSION: Final = {(one.name, one.version): one for one in (*EARLIER, *TOPOLOGIES)}
_BEFORE_VERSIONS: Final = {
    "skill_pipeline": 3,
    "context_assembly": 1,
    "tool_loop": 1,
    "clarify_solve": 1,
    "decision_hub": 1,
}
"""The version of a turn that pins none."""


def names() -> tuple[str, ...]:
    """Returns the names of all topologies, in the order above."""
    return tuple(_BY_NAME)


def loads_toolsets(name: str) -> bool:
    """Returns whether the topology offers the tools of a toolset only if that is loaded."""
    return name in _BY_NAME and any(field.name == LOADED_TOOLSETS for field in _BY_NAME[name].state.fields)


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


def pinned(name: str, version: int | None) -> Topology:
    """Returns the topology `name` in the version that a turn pins.

    Raises: InvariantBroken `unknown_topology_version`; the turn waits for a worker that knows the version, and the
    relay ends it if none runs it within PERDURE_STUCK_AFTER.
    CallerError 404 `unknown_topology`.
    """
    spec(name)
    wanted = (name, _BEFORE_VERSIONS.get(name) if version is None else version)
    if wanted not in _BY_VERSION:
        raise InvariantBroken(
            "unknown_topology_version",
            f"This worker does not know version {wanted[1]} of the topology `{name[:80]}`; it continues when a "
            "worker that knows it runs, unless that takes longer than PERDURE_STUCK_AFTER, which ends it.",
        )
    return _BY_VERSION[wanted]
