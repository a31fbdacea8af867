"""The topologies that ship: checked and compiled once, when this module is imported."""

from typing import Final

from contracts.errors import CallerError
from graph.compile import CompiledTopology, compile_topology
from graph.spec import Topology
from graph.topologies.skill_pipeline.nodes import NODES
from graph.topologies.skill_pipeline.spec import skill_pipeline

TOPOLOGIES: Final[tuple[Topology, ...]] = (skill_pipeline(NODES),)

_COMPILED: Final = {one.name: compile_topology(one) for one in TOPOLOGIES}


def names() -> tuple[str, ...]:
    """The names of all topologies, in the order above."""
    return tuple(_COMPILED)


def topology(name: str) -> CompiledTopology:
    """The topology `name`, ready to run.

    Raises: CallerError `unknown_topology`.
    """
    if name not in _COMPILED:
        raise CallerError("unknown_topology", f"There is no topology `{name}`.", status=404)
    return _COMPILED[name]
