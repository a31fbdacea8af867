"""The twelve nodes of `decision_hub`, by their ids."""

from contracts.facts import FactScope
from graph.spec import Node
from graph.topologies.decision_hub.nodes.call_backend import CallBackend
from graph.topologies.decision_hub.nodes.decide import Decide
from graph.topologies.decision_hub.nodes.format_response import FormatResponse
from graph.topologies.decision_hub.nodes.handle_result import HandleResult
from graph.topologies.decision_hub.nodes.init_state import InitState
from graph.topologies.decision_hub.nodes.preprocess import Preprocess
from graph.topologies.decision_hub.nodes.route_error import RouteError
from graph.topologies.decision_hub.nodes.route_input import RouteInput
from graph.topologies.decision_hub.nodes.use_memory import ReadMemory, WriteMemory

NODES: dict[str, Node] = {
    "router_node": RouteInput(),
    "state_init_node": InitState(),
    "decision_logic_node": Decide(),
    "task_preprocessing_node": Preprocess(),
    "model_call_node": CallBackend(),
    "result_handling_node": HandleResult(),
    "error_router_node": RouteError(),
    "format_response_node": FormatResponse(),
    "memory_read_node": ReadMemory(FactScope.CONVERSATION),
    "memory_write_node": WriteMemory(FactScope.CONVERSATION),
    "long_term_memory_read_node": ReadMemory(FactScope.USER),
    "long_term_memory_write_node": WriteMemory(FactScope.USER),
}
