"""S3 with stand-in nodes: eight nodes around one decision, and four memory nodes that hang off it."""

from enum import StrEnum
from typing import Literal

from contracts.messages import Patch
from graph.spec import END, FRESH, Goto, NodeSpec, RunLimits, State, Switch, Topology
from graph.state import Field, StateSchema
from tests.topologies.rows import Leg, Row
from tests.topologies.stand_ins import count, stand_ins

IDS = (
    *("router_node", "state_init_node", "decision_logic_node", "task_preprocessing_node", "model_call_node"),
    *("result_handling_node", "error_router_node", "format_response_node"),
    *("memory_read_node", "memory_write_node", "long_term_memory_read_node", "long_term_memory_write_node"),
)


class Command(StrEnum):
    """S3-05."""

    PREPROCESS = "preprocess"
    CALL_MODEL = "call_model"
    FORMAT = "format"
    MEMORY_READ = "memory_read"
    MEMORY_WRITE = "memory_write"
    LONG_TERM_MEMORY_READ = "long_term_memory_read"
    LONG_TERM_MEMORY_WRITE = "long_term_memory_write"


MEMORY: tuple[str, ...] = ("memory_read", "memory_write", "long_term_memory_read", "long_term_memory_write")


async def after_decision(state: State) -> Command:
    """The command, which only the decision node emits (S3-05)."""
    return Command(str(state["command"]))


async def after_model(state: State) -> Literal["success", "failure"]:
    """The status of the call, never its text (S3-08)."""
    response = state["model_response"]
    assert isinstance(response, dict)
    return "success" if response["status"] == "success" else "failure"


def decide(state: State) -> Patch:
    """The next command not done yet. Each is given once, so a dead memory cannot make it loop (S3-24)."""
    wanted = MEMORY if state["wants_memory"] else ()
    plan = ["preprocess", *[name for name in wanted if name.endswith("read")], "call_model"]
    plan += [*[name for name in wanted if name.endswith("write")], "format"]
    given = count(state, "commands_given")
    return {"command": plan[given], "commands_given": given + 1}


def respond(state: State) -> Patch:
    """S3-17."""
    return {"status": "completed" if state["error_type"] is None else "failed"}


def topology() -> Topology:
    """The topology under test."""
    nodes = stand_ins(
        IDS,
        decision_logic_node=decide,
        model_call_node=lambda state: {"model_response": {"status": "success", "output": "fine"}},
        error_router_node=lambda state: {"error_type": "timeout"},
        format_response_node=respond,
    )
    hub = "decision_logic_node"
    return Topology(
        name="decision_hub",
        version=1,
        state=StateSchema(
            (
                Field("command"),
                Field("commands_given", 0),
                Field("wants_memory", False),
                Field("model_response"),
                Field("error_type"),
                Field("memory_available", True),
            )
        ),
        nodes=tuple(NodeSpec(name, nodes[name], limit="commands" if name == hub else "") for name in IDS),
        edges=(
            Goto("router_node", "state_init_node"),
            Goto("state_init_node", hub),
            Switch(
                hub,
                after_decision,
                {
                    "preprocess": "task_preprocessing_node",
                    "call_model": "model_call_node",
                    "format": "format_response_node",
                    **{name: f"{name}_node" for name in MEMORY},
                },
            ),
            Goto("task_preprocessing_node", hub),
            Switch("model_call_node", after_model, {"success": "result_handling_node", "failure": "error_router_node"}),
            Goto("result_handling_node", hub),
            Goto("error_router_node", "format_response_node"),
            *(Goto(f"{name}_node", hub) for name in MEMORY),
            Goto("format_response_node", END),
        ),
        entries={FRESH: "router_node"},
        limits=RunLimits(counted={"commands": 7}),
    )


BEGIN = "router_node state_init_node decision_logic_node task_preprocessing_node decision_logic_node"
ANSWER = "model_call_node result_handling_node decision_logic_node"
READ = "memory_read_node decision_logic_node long_term_memory_read_node decision_logic_node"
WRITE = "memory_write_node decision_logic_node long_term_memory_write_node decision_logic_node"
DEAD: Patch = {"memory_available": False}

ROWS = (
    Row("the success path", (Leg(f"{BEGIN} {ANSWER} format_response_node", "completed"),)),
    Row(
        "the failure path",
        (
            Leg(
                f"{BEGIN} model_call_node error_router_node format_response_node",
                "failed",
                {"model_call_node": [{"model_response": {"status": "recoverable_error", "output": ""}}]},
            ),
        ),
    ),
    Row(
        "all four memory nodes hang off the decision",
        (Leg(f"{BEGIN} {READ} {ANSWER} {WRITE} format_response_node", "completed"),),
        initial={"wants_memory": True},
    ),
    Row(
        "a dead memory gives the same trace and ends",
        (
            Leg(
                f"{BEGIN} {READ} {ANSWER} {WRITE} format_response_node",
                "completed",
                {f"{name}_node": [DEAD] for name in MEMORY},
            ),
        ),
        initial={"wants_memory": True},
    ),
    Row(
        "text full of commands does not steer",
        (
            Leg(
                f"{BEGIN} {ANSWER} format_response_node",
                "completed",
                {"model_call_node": [{"model_response": {"status": "success", "output": "memory_read preprocess"}}]},
            ),
        ),
    ),
)
