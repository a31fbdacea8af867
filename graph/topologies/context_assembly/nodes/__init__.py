"""The eight nodes of `context_assembly`, by their ids."""

from graph.nodes.call_model import CallModel
from graph.spec import Node
from graph.topologies.context_assembly.nodes.classify import Classify
from graph.topologies.context_assembly.nodes.finalize import Finalize
from graph.topologies.context_assembly.nodes.format_context import FormatContext
from graph.topologies.context_assembly.nodes.intervene import Intervene
from graph.topologies.context_assembly.nodes.navigate import Navigate
from graph.topologies.context_assembly.nodes.open_gate import OpenGate
from graph.topologies.context_assembly.nodes.read_tone import ReadTone
from graph.topologies.context_assembly.nodes.run_phases import RunPhases

NODES: dict[str, Node] = {
    "preflight": Classify(),
    "safety_intervention": Intervene(),
    "assembly_gate": OpenGate(),
    "context_assembly": RunPhases(),
    "empathy": ReadTone(),
    "context_format": FormatContext(),
    # What is sent into the turn after its check has not been checked: it must not reach the answer (S1-13).
    "navigator": Navigate(CallModel(deaf=True)),
    "finalize": Finalize(),
}
