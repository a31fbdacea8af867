"""S1 with stand-in nodes: eight stages, the eleven edges of the seed with their kinds and conditions, and the error
edge that the seed lacks (S1-36)."""

from enum import StrEnum
from typing import Literal

from contracts.messages import Patch
from graph.reducers import ADDITIVE
from graph.spec import END, FRESH, Fork, Goto, Join, NodeSpec, State, Switch, Topology
from graph.state import Field, StateSchema
from tests.topologies.rows import Leg, Row
from tests.topologies.stand_ins import stand_ins


class EdgeType(StrEnum):
    """S1-03."""

    ENTRY = "ENTRY"
    CONDITIONAL = "CONDITIONAL"
    TERMINAL_PATH = "TERMINAL_PATH"
    PARALLEL_BRANCH = "PARALLEL_BRANCH"
    JOIN_INPUT = "JOIN_INPUT"
    SEQUENCE = "SEQUENCE"
    EXIT = "EXIT"


class EdgeCondition(StrEnum):
    """S1-03, and the condition of the error edge."""

    SAFETY_HIJACKED = "SAFETY_HIJACKED"
    NOT_SAFETY_HIJACKED = "NOT_SAFETY_HIJACKED"
    ASSEMBLY_FAILED = "ASSEMBLY_FAILED"


IDS = (
    *("preflight", "safety_intervention", "assembly_gate", "context_assembly"),
    *("empathy", "context_format", "navigator", "finalize"),
)
PURPOSES = {"preflight": "Classify intent and safety", "finalize": "Settle the status"}


async def after_preflight(state: State) -> Literal["hijacked", "clear"]:
    """Only the safety verdict decides (S1-07)."""
    return "hijacked" if state["safety_hijacked"] else "clear"


async def after_context_format(state: State) -> Literal["assembled", "failed"]:
    """A failed required tool never reaches the navigator (S1-35)."""
    return "assembled" if state["error"] is None else "failed"


def stage(name: str) -> Patch:
    """What every stage adds (S1-08)."""
    return {"completed_stages": [name]}


def topology() -> Topology:
    """The topology under test."""

    def settle(state: State) -> Patch:
        return stage("finalize") | {"status": "completed" if state["error"] is None else "failed"}

    behaviours = {name: (lambda state, name=name: stage(name)) for name in IDS if name != "finalize"}
    nodes = stand_ins(IDS, **behaviours, finalize=settle)
    return Topology(
        name="context_assembly",
        version=1,
        state=StateSchema((Field("safety_hijacked", False), Field("completed_stages", [], ADDITIVE))),
        nodes=tuple(NodeSpec(name, nodes[name], purpose=PURPOSES.get(name, "")) for name in IDS),
        edges=(
            Switch(
                "preflight",
                after_preflight,
                {"hijacked": "safety_intervention", "clear": "assembly_gate"},
                kinds={"hijacked": EdgeType.CONDITIONAL, "clear": EdgeType.CONDITIONAL},
                conditions={"hijacked": EdgeCondition.SAFETY_HIJACKED, "clear": EdgeCondition.NOT_SAFETY_HIJACKED},
            ),
            Goto("safety_intervention", "finalize", EdgeType.TERMINAL_PATH),
            Fork("assembly_gate", ("context_assembly", "empathy"), kind=EdgeType.PARALLEL_BRANCH),
            Join(("context_assembly", "empathy"), "context_format", kind=EdgeType.JOIN_INPUT),
            Switch(
                "context_format",
                after_context_format,
                {"assembled": "navigator", "failed": "finalize"},
                kinds={"assembled": EdgeType.SEQUENCE, "failed": EdgeType.TERMINAL_PATH},
                conditions={"failed": EdgeCondition.ASSEMBLY_FAILED},
            ),
            Goto("navigator", "finalize", EdgeType.SEQUENCE),
            Goto("finalize", END, EdgeType.EXIT),
        ),
        entries={FRESH: "preflight"},
    )


GATHER = "preflight assembly_gate context_assembly empathy context_format"

ROWS = (
    Row("a calm turn reaches the navigator", (Leg(f"{GATHER} navigator finalize", "completed"),)),
    Row(
        "a hijacked turn takes the safety path",
        (
            Leg(
                "preflight safety_intervention finalize",
                "completed",
                {"preflight": [{"safety_hijacked": True}]},
            ),
        ),
    ),
    Row(
        "a failed assembly never reaches the navigator",
        (
            Leg(
                f"{GATHER} finalize",
                "failed",
                {"context_assembly": [{"error": {"code": "tool_failed", "message": "A required tool failed."}}]},
            ),
        ),
        error="tool_failed",
    ),
)
