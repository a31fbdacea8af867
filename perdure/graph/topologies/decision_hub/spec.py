"""The topology `decision_hub`: twelve nodes, each with the fields that it writes and the ports that it uses."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal

from perdure.contracts.activities import MEMORY_FACTS, MEMORY_LOAD, MODEL_COMPLETE, ActivityRef
from perdure.graph.nodes.fields import BUDGET, CONVERSATION, IDENTITY
from perdure.graph.spec import END, FRESH, Goto, Node, NodeSpec, RunLimits, State, Switch, Topology
from perdure.graph.state import Field, StateSchema
from perdure.graph.topologies.decision_hub.backend import AnswerStatus

# Whole texts are in Postgres: `raw_input` and `final_output` have only the beginnings, and `model_response` refers to
# its message. A read that found nothing has no result, so only its status shows that it is done.
REQUEST: Final = (
    Field("trace_id", ""),
    Field("created_at", ""),
    Field("input_type", ""),
    Field("raw_input", ""),
)
RESULTS: Final = (
    Field("preprocessing_result"),
    Field("model_response"),
    Field("model_metadata"),
    Field("final_output"),
    Field("error_type"),
    Field("command"),
    Field("response"),
)
SHORT_TERM: Final = (
    Field("memory_available", True),
    Field("memory_read_authorized", False),
    Field("memory_write_authorized", False),
    Field("memory_read_status"),
    Field("memory_read_result"),
    Field("memory_write_status"),
)
LONG_TERM: Final = (
    Field("long_term_memory_requested", False),
    Field("long_term_memory_status", "available"),
    Field("long_term_memory_read_status"),
    Field("long_term_memory_read_result"),
    Field("long_term_memory_write_status"),
)

STATE: Final = StateSchema((*IDENTITY, *CONVERSATION, *BUDGET, *REQUEST, *RESULTS, *SHORT_TERM, *LONG_TERM))


# The next command depends only on what is done and what is allowed, never on a text of the model or a fact. A step with
# a status is done, whatever the status is. So an unavailable memory is called once and never again.
class Command(StrEnum):
    """The commands that the deciding node can give."""

    PREPROCESS = "preprocess"
    MEMORY_READ = "memory_read"
    LONG_TERM_MEMORY_READ = "long_term_memory_read"
    CALL_MODEL = "call_model"
    MEMORY_WRITE = "memory_write"
    LONG_TERM_MEMORY_WRITE = "long_term_memory_write"
    FORMAT = "format"


@dataclass(frozen=True, slots=True)
class TurnProgress:
    """The progress of a turn."""

    failed: bool
    """True if the turn has an error, so that only its response is left."""
    done: frozenset[Command]
    """The commands that have a result of any kind."""
    allowed: frozenset[Command]
    """The memory operations that the turn can make."""


COMMANDS_IN_ORDER = (
    Command.PREPROCESS,
    Command.MEMORY_READ,
    Command.LONG_TERM_MEMORY_READ,
    Command.CALL_MODEL,
    Command.MEMORY_WRITE,
    Command.LONG_TERM_MEMORY_WRITE,
)
NEEDS_PERMISSION = frozenset(COMMANDS_IN_ORDER) - {Command.PREPROCESS, Command.CALL_MODEL}


def next_command(progress: TurnProgress) -> Command:
    """Returns the first command that is neither done nor forbidden; after all of them, the response."""
    if progress.failed:
        return Command.FORMAT
    for command in COMMANDS_IN_ORDER:
        if command not in progress.done and (command not in NEEDS_PERMISSION or command in progress.allowed):
            return command
    return Command.FORMAT


VERSION: Final = 1
"""Increases with every change of a node id or a route."""
DECISION_NODE: Final = "decision_logic_node"
MAX_STEPS: Final = 20
"""The longest path has 17 steps: each command once, with the decision before it."""

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

# (id, purpose, fields that it writes, ports that it uses)
_NODES: Final[tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...]] = (
    ("router_node", "Tell text from audio and image", ("input_type", "raw_input", "error", "status"), ()),
    (
        "state_init_node",
        "Determine the requester and the permissions",
        (
            *("conversation_id", "trace_id", "created_at", "error", "status", "messages", "plan", "model", "agent_id"),
            *("agent_type", "system_prompt", "user", "metadata", "max_tokens", "max_cost_microusd"),
            *("memory_read_authorized", "memory_write_authorized", "long_term_memory_requested"),
        ),
        (),
    ),
    (DECISION_NODE, "Decide the next step, and nothing else", ("command",), ()),
    (
        "task_preprocessing_node",
        "Trim the text, or substitute for input that is not text",
        ("preprocessing_result",),
        (),
    ),
    (
        "model_call_node",
        "Call the model once",
        ("model_response", "model_metadata", "tokens_used", "cost_microusd"),
        ("model",),
    ),
    ("result_handling_node", "Store the answer", ("final_output", "messages"), ()),
    ("error_router_node", "Name the failure and answer in its place", ("error_type", "final_output", "error"), ()),
    ("format_response_node", "Assemble the response", ("response", "status"), ()),
    (
        "memory_read_node",
        "Read this conversation's facts",
        ("memory_read_status", "memory_read_result", "memory_available"),
        ("memory",),
    ),
    (
        "memory_write_node",
        "Store facts of this conversation",
        ("memory_write_status", "memory_available"),
        ("memory",),
    ),
    (
        "long_term_memory_read_node",
        "Read the person's facts",
        ("long_term_memory_read_status", "long_term_memory_read_result", "long_term_memory_status"),
        ("memory",),
    ),
    (
        "long_term_memory_write_node",
        "Store facts of the person",
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
    """Returns the topology, with `nodes` for its twelve node ids."""
    return Topology(
        name="decision_hub",
        version=VERSION,
        state=STATE,
        nodes=tuple(
            NodeSpec(
                node_id,
                nodes[node_id],
                purpose=purpose,
                limit="max_steps" if node_id == DECISION_NODE else "",
                spanned=node_id != DECISION_NODE,
                writes=writes,
                reaches=reaches,
                advised=node_id == "model_call_node",
                calls=_CALLS.get(node_id, ()),
            )
            for node_id, purpose, writes, reaches in _NODES
        ),
        edges=(
            Goto("router_node", "state_init_node"),
            Goto("state_init_node", DECISION_NODE),
            Switch(DECISION_NODE, after_decision, _TARGETS),
            Goto("task_preprocessing_node", DECISION_NODE),
            Switch(
                "model_call_node",
                after_model,
                {"success": "result_handling_node", "failure": "error_router_node"},
            ),
            Goto("result_handling_node", DECISION_NODE),
            Goto("error_router_node", "format_response_node"),
            *(Goto(node, DECISION_NODE) for node in MEMORY_NODES.values()),
            Goto("format_response_node", END),
        ),
        entries={FRESH: "router_node"},
        limits=RunLimits(steps=MAX_STEPS),
        strict=True,
        advice=("memory_read_result", "long_term_memory_read_result"),
    )


# Neither router reads a text. One reads the command, the other the status of a call.
async def after_decision(state: State) -> Command:
    """Routes by the command, which only the deciding node gives."""
    return Command(str(state["command"]))


async def after_model(state: State) -> Literal["success", "failure"]:
    """Routes by whether there is an answer."""
    response = state["model_response"]
    status = response.get("status") if isinstance(response, dict) else None
    return "success" if status == AnswerStatus.SUCCESS else "failure"
