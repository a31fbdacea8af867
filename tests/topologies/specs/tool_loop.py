"""S2 with stand-in nodes: five nodes, an additive history, a limit on graph steps."""

from typing import Literal

from contracts.messages import Patch
from contracts.people import PauseKind
from graph.reducers import ADDITIVE
from graph.spec import END, FRESH, Goto, NodeSpec, RunLimits, State, Switch, Topology
from graph.state import Field, StateSchema
from tests.topologies.rows import Leg, Row
from tests.topologies.stand_ins import stand_ins

IDS = ("entry", "memory_prepare", "model", "gate", "final")
SETTING = "LLM_MAX_ITERATIONS"


async def after_entry(state: State) -> Literal["pending", "fresh"]:
    """S2-02."""
    return "pending" if state["pending_tools"] else "fresh"


async def after_model(state: State) -> Literal["tools", "text"]:
    """Native stop semantics: a text-only answer ends the turn (S2-20)."""
    return "tools" if state["pending_tools"] else "text"


async def after_gate(state: State) -> Literal["awaiting", "error", "more"]:
    """S2-02 and S2-03."""
    if state["awaiting_approval"]:
        return "awaiting"
    return "error" if state["error"] is not None else "more"


def settle(state: State) -> Patch:
    """S2-43, with the pause told apart."""
    if state["awaiting_approval"]:
        return {"status": "awaiting"}
    return {"done": True, "status": "completed" if state["error"] is None else "failed"}


def topology() -> Topology:
    """The topology under test."""
    nodes = stand_ins(
        IDS,
        entry=lambda state: {"awaiting_approval": False, "memory_context_loaded": False, "status": "running"},
        memory_prepare=lambda state: {"memory_context_loaded": True},
        gate=lambda state: {"pending_tools": []},
        final=settle,
    )
    return Topology(
        name="tool_loop",
        version=1,
        state=StateSchema(
            (
                Field("messages", [], ADDITIVE),
                Field("pending_tools", []),
                Field("awaiting_approval", False),
                Field("memory_context_loaded", False),
                Field("loaded_toolsets", {"k8s": False}),
                Field("done", False),
            )
        ),
        nodes=(
            NodeSpec("entry", nodes["entry"], purpose="Reset, or take up the pending calls"),
            NodeSpec("memory_prepare", nodes["memory_prepare"], purpose="Inject memory before the model"),
            NodeSpec("model", nodes["model"], purpose="Call the model"),
            NodeSpec("gate", nodes["gate"], pauses=True, purpose="Run tools, ask for approvals", limit=SETTING),
            NodeSpec("final", nodes["final"], purpose="Settle the status"),
        ),
        edges=(
            Switch("entry", after_entry, {"pending": "gate", "fresh": "memory_prepare"}),
            Goto("memory_prepare", "model"),
            Switch("model", after_model, {"tools": "gate", "text": "final"}),
            Switch("gate", after_gate, {"awaiting": "final", "error": "final", "more": "model"}),
            Goto("final", END),
        ),
        entries={FRESH: "entry", PauseKind.APPROVAL.value: "entry"},
        limits=RunLimits(steps=25, steps_setting=SETTING),
    )


ASKS: Patch = {"messages": [{"role": "assistant", "text": "I look."}], "pending_tools": [{"id": "c1"}]}
SAYS: Patch = {"messages": [{"role": "assistant", "text": "Done."}]}
WAITS: Patch = {"awaiting_approval": True, "pending_tools": [{"id": "c1"}], "pending_requests": [{"request_id": "r1"}]}
RAN: Patch = {"messages": [{"role": "tool", "text": "ok"}], "pending_requests": []}

ROWS = (
    Row("a text-only answer", (Leg("entry memory_prepare model final", "completed", {"model": [SAYS]}),)),
    Row(
        "a tool call and the answer after it",
        (Leg("entry memory_prepare model gate model final", "completed", {"model": [ASKS, SAYS], "gate": [RAN]}),),
    ),
    Row(
        "an approval pauses the turn, and the resumed turn skips memory",
        (
            Leg("entry memory_prepare model gate final", "awaiting", {"model": [ASKS], "gate": [WAITS]}),
            Leg("entry gate model final", "completed", {"gate": [RAN], "model": [SAYS]}, entry="approval"),
        ),
    ),
    Row(
        "a failure of the gate ends the turn",
        (
            Leg(
                "entry memory_prepare model gate final",
                "failed",
                {"model": [ASKS], "gate": [{"error": {"code": "gate_failed", "message": "The gate failed."}}]},
            ),
        ),
        error="gate_failed",
    ),
    Row(
        "a model that never stops meets the step limit",
        (
            Leg(
                "entry memory_prepare model" + " gate model" * 11,
                "limited",
                {"model": [ASKS] * 12},
            ),
        ),
        error="iteration_limit",
    ),
)
