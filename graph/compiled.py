"""The topologies that ship, ready to run: checked and compiled once, when this module is imported."""

from typing import Final

from graph.compile import CompiledTopology, compile_topology
from graph.registry import TOPOLOGIES, spec

_COMPILED: Final = {one.name: compile_topology(one) for one in TOPOLOGIES}


def topology(name: str) -> CompiledTopology:
    """The topology `name`, compiled.

    Raises: CallerError 404 `unknown_topology`.
    """
    return _COMPILED[spec(name).name]
