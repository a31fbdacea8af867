"""A shipped topology whose nodes are held to the activities that they declare."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from perdure.contracts import activities
from perdure.contracts.messages import Patch
from perdure.graph.compile import CompiledTopology, compile_topology
from perdure.graph.ports import Ports
from perdure.graph.registry import spec
from perdure.graph.spec import Node, NodeSpec, State, Sub, Topology

BY_METHOD: Mapping[tuple[str, str], activities.ActivityRef[Any, Any]] = {
    ("model", "complete"): activities.MODEL_COMPLETE,
    ("tools", "run"): activities.TOOLS_RUN,
    ("tools", "make"): activities.TOOLS_RUN,
    ("tools", "check"): activities.TOOLS_CHECK,
    ("tools", "assemble"): activities.TOOLS_ASSEMBLE,
    ("memory", "load"): activities.MEMORY_LOAD,
    ("memory", "facts"): activities.MEMORY_FACTS,
    ("people", "open_requests"): activities.APPROVALS_OPEN,
    ("people", "open_question"): activities.APPROVALS_OPEN,
    ("people", "verdicts"): activities.APPROVALS_READ,
}


@dataclass(frozen=True, slots=True)
class Port:
    name: str
    port: Any
    topology: str
    node: str
    declared: frozenset[str]

    def __getattr__(self, method: str) -> Any:
        ref = BY_METHOD[self.name, method]
        assert ref.name in self.declared, f"{self.topology}/{self.node} calls {ref.name} and does not declare it"
        return getattr(self.port, method)


@dataclass(frozen=True, slots=True)
class Held:
    run: Node
    topology: str
    node: str
    declared: frozenset[str]

    async def __call__(self, state: State, ports: Ports) -> Patch:
        seen: dict[str, Any] = {
            name: Port(name, getattr(ports, name), self.topology, self.node, self.declared)
            for name in ("model", "tools", "memory", "people")
        }
        return await self.run(state, replace(ports, **seen))


@cache
def held(name: str) -> CompiledTopology:
    return compile_topology(_held(spec(name)))


def _held(topology: Topology) -> Topology:
    return replace(topology, nodes=tuple(_node(topology, node) for node in topology.nodes))


def _node(topology: Topology, node: NodeSpec) -> NodeSpec:
    if isinstance(node.run, Sub):
        return replace(node, run=Sub(_held(node.run.topology)))
    declared = frozenset(ref.name for ref in node.calls)
    return replace(node, run=Held(node.run, topology.name, node.id, declared))
