"""The five nodes of `tool_loop`, by their ids."""

from graph.nodes.call_model import CallModel
from graph.spec import Node
from graph.topologies.tool_loop.nodes.enter import Enter
from graph.topologies.tool_loop.nodes.pass_gate import PassGate
from graph.topologies.tool_loop.nodes.prepare_memory import PrepareMemory
from graph.topologies.tool_loop.nodes.settle import Settle

NODES: dict[str, Node] = {
    "entry": Enter(),
    "memory_prepare": PrepareMemory(),
    "model": CallModel(by_toolsets=True),
    "gate": PassGate(),
    "final": Settle(),
}
