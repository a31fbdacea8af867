"""`decision_hub` with stand-in nodes: eight nodes around one decision, and four memory nodes that hang off it."""

from pydantic import JsonValue

from perdure.contracts.messages import Patch
from perdure.graph.spec import State, Topology
from perdure.graph.topologies.decision_hub.nodes import progress_of
from perdure.graph.topologies.decision_hub.spec import IDS, decision_hub, next_command
from tests.topologies.rows import Leg, row
from tests.topologies.stand_ins import stand_ins


def respond(state: State) -> Patch:
    """A turn with an error is failed, any other completed."""
    return {"status": "completed" if state["error"] is None else "failed"}


def topology() -> Topology:
    found: Patch = {"memory_read_status": "not_found", "memory_read_result": None}
    nodes = stand_ins(
        IDS,
        decision_logic_node=lambda state: {"command": next_command(progress_of(state)).value},
        task_preprocessing_node=lambda state: {"preprocessing_result": "text"},
        model_call_node=lambda state: {"model_response": {"status": "success"}},
        result_handling_node=lambda state: {"final_output": "fine"},
        error_router_node=lambda state: {
            "error_type": "timeout",
            "error": {"code": "timeout", "message": "The model did not finish in time."},
        },
        memory_read_node=lambda state: found,
        memory_write_node=lambda state: {"memory_write_status": "success"},
        long_term_memory_read_node=lambda state: {"long_term_memory_read_status": "success"},
        long_term_memory_write_node=lambda state: {"long_term_memory_write_status": "success"},
        format_response_node=respond,
    )
    return decision_hub(nodes)


BEGIN = "router_node state_init_node decision_logic_node task_preprocessing_node decision_logic_node"
ANSWER = "model_call_node result_handling_node decision_logic_node"
FAILURE = "model_call_node error_router_node format_response_node"
READ = "memory_read_node decision_logic_node long_term_memory_read_node decision_logic_node"
WRITE = "memory_write_node decision_logic_node long_term_memory_write_node decision_logic_node"
ALLOWED: dict[str, JsonValue] = {
    "memory_read_authorized": True,
    "memory_write_authorized": True,
    "long_term_memory_requested": True,
}
FAILED: Patch = {"model_response": {"status": "recoverable_error", "error_type": "timeout"}}
ROWS = (
    row("the failure path", Leg(f"{BEGIN} {FAILURE}", {"model_call_node": [FAILED]}, "failed"), error="timeout"),
    row("all four memory nodes hang off the decision", Leg(f"{BEGIN} {READ} {ANSWER} {WRITE} format_response_node"),
        initial=ALLOWED),
    row("a decision that never ends meets the limit of steps",
        Leg(f"{BEGIN} {'task_preprocessing_node decision_logic_node ' * 7}task_preprocessing_node",
            {"decision_logic_node": [{"command": "preprocess"}] * 9}, "limited"), error="iteration_limit"),
)  # fmt: skip
