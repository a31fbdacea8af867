"""The topology `decision_hub` (S3): twelve nodes, each with the fields that are its own and the ports that it uses."""

from collections.abc import Mapping
from typing import Any, Final

from contracts.activities import MEMORY_FACTS, MEMORY_LOAD, MODEL_COMPLETE, ActivityRef
from graph.spec import END, FRESH, Goto, Node, NodeSpec, RunLimits, Switch, Topology
from graph.topologies.decision_hub import routes
from graph.topologies.decision_hub.state import STATE
from policy.hub_commands import Command

VERSION: Final = 1
"""Raised with every change of a node id or a route."""
HUB: Final = "decision_logic_node"
MOST_STEPS: Final = 20
"""The longest way takes 17: each command once, each with the decision before it."""

MEMORY_NODES: Final[Mapping[Command, str]] = {
    Command.MEMORY_READ: "memory_read_node",
    Command.MEMORY_WRITE: "memory_write_node",
    Command.LONG_TERM_MEMORY_READ: "long_term_memory_read_node",
    Command.LONG_TERM_MEMORY_WRITE: "long_term_memory_write_node",
}
_TARGETS: Final[Mapping[str, str]] = {
    Command.PREPROCESS.value: "task_preprocessing_node",
    Command.CALL_MODEL.value: "model_call_node",
    Command.FORMAT.value: "format_response_node",
    **{command.value: node for command, node in MEMORY_NODES.items()},
}

# (id, purpose, fields that are its own, ports that it uses)
_NODES: Final[tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...]] = (
    ("router_node", "Tell text from audio and image", ("input_type", "raw_input", "error", "status"), ()),
    (
        "state_init_node",
        "Fix who asks and what is allowed",
        (
            *("conversation_id", "trace_id", "created_at", "error", "status", "messages", "plan", "model", "agent_id"),
            *("agent_type", "system_prompt", "user", "metadata", "max_tokens", "max_cost_microusd"),
            *("memory_read_authorized", "memory_write_authorized", "long_term_memory_requested"),
        ),
        (),
    ),
    (HUB, "Decide what is next, and nothing else", ("command",), ()),
    ("task_preprocessing_node", "Trim the text, or stand in for what is none", ("preprocessing_result",), ()),
    (
        "model_call_node",
        "Ask the model once",
        ("model_response", "model_metadata", "tokens_used", "cost_microusd"),
        ("model",),
    ),
    ("result_handling_node", "Keep the answer", ("final_output", "messages"), ()),
    ("error_router_node", "Name the failure and answer in its place", ("error_type", "final_output", "error"), ()),
    ("format_response_node", "Put the response together", ("response", "status"), ()),
    (
        "memory_read_node",
        "Read what is known in this conversation",
        ("memory_read_status", "memory_read_result", "memory_available"),
        ("memory",),
    ),
    (
        "memory_write_node",
        "Keep what was stated in this conversation",
        ("memory_write_status", "memory_available"),
        ("memory",),
    ),
    (
        "long_term_memory_read_node",
        "Read what is known of the person",
        ("long_term_memory_read_status", "long_term_memory_read_result", "long_term_memory_status"),
        ("memory",),
    ),
    (
        "long_term_memory_write_node",
        "Add what the person stated",
        ("long_term_memory_write_status", "long_term_memory_status"),
        ("memory",),
    ),
)
_CALLS: Final[Mapping[str, tuple[ActivityRef[Any, Any], ...]]] = {
    "router_node": (MEMORY_LOAD,),
    "state_init_node": (MEMORY_LOAD,),
    "model_call_node": (MODEL_COMPLETE,),
    **dict.fromkeys(MEMORY_NODES.values(), (MEMORY_FACTS,)),
}
IDS: Final = tuple(node_id for node_id, *_ in _NODES)


def decision_hub(nodes: Mapping[str, Node]) -> Topology:
    """The topology, with `nodes` for its twelve node ids."""
    return Topology(
        name="decision_hub",
        version=VERSION,
        state=STATE,
        nodes=tuple(
            NodeSpec(
                node_id,
                nodes[node_id],
                purpose=purpose,
                limit="max_steps" if node_id == HUB else "",
                spanned=node_id != HUB,
                writes=writes,
                reaches=reaches,
                advised=node_id == "model_call_node",
                calls=_CALLS.get(node_id, ()),
            )
            for node_id, purpose, writes, reaches in _NODES
        ),
        edges=(
            Goto("router_node", "state_init_node"),
            Goto("state_init_node", HUB),
            Switch(HUB, routes.after_decision, _TARGETS),
            Goto("task_preprocessing_node", HUB),
            Switch(
                "model_call_node",
                routes.after_model,
                {"success": "result_handling_node", "failure": "error_router_node"},
            ),
            Goto("result_handling_node", HUB),
            Goto("error_router_node", "format_response_node"),
            *(Goto(node, HUB) for node in MEMORY_NODES.values()),
            Goto("format_response_node", END),
        ),
        entries={FRESH: "router_node"},
        limits=RunLimits(steps=MOST_STEPS),
        strict=True,
        advice=("memory_read_result", "long_term_memory_read_result"),
    )
