"""A topology whose routers tell which labels they returned."""

from dataclasses import replace
from typing import Any

from perdure.graph.compile import CompiledTopology, compile_topology
from perdure.graph.spec import Edge, NodeSpec, Router, State, Sub, Switch, Topology
from perdure.graph.validate import labels_of


def observed(topology: Topology) -> tuple[CompiledTopology, set[tuple[str, str]]]:
    """The topology compiled, and the set of (source, label) that grows as it runs."""
    taken: set[tuple[str, str]] = set()
    return compile_topology(_listening(topology, taken)), taken


def _listening(topology: Topology, taken: set[tuple[str, str]]) -> Topology:
    return replace(
        topology,
        nodes=tuple(_node(node, taken) for node in topology.nodes),
        edges=tuple(_edge(edge, taken) for edge in topology.edges),
    )


def _node(node: NodeSpec, taken: set[tuple[str, str]]) -> NodeSpec:
    return replace(node, run=Sub(_listening(node.run.topology, taken))) if isinstance(node.run, Sub) else node


def _edge(edge: Edge, taken: set[tuple[str, str]]) -> Edge:
    return replace(edge, router=_router(edge, taken)) if isinstance(edge, Switch) else edge


def _router(edge: Switch, taken: set[tuple[str, str]]) -> Router:
    async def tell(state: State) -> Any:
        label = await edge.router(state)
        taken.add((edge.source, label))
        return label

    tell.__annotations__ = edge.router.__annotations__
    assert labels_of(tell) == labels_of(edge.router)
    return tell
