"""The topology `tool_loop` (S2): five nodes, every route of S2-01 to S2-03."""

from collections.abc import Mapping
from typing import Final

from contracts.activities import APPROVALS_OPEN, APPROVALS_READ, MEMORY_LOAD, MODEL_COMPLETE, TOOLS_RUN
from contracts.people import PauseKind
from graph.nodes.fields import AWAITING_HITL, MAX_ITERATIONS, PENDING
from graph.spec import END, FRESH, Goto, Node, NodeSpec, Outcome, RunLimits, Switch, Topology
from graph.topologies.tool_loop import routes
from graph.topologies.tool_loop.state import STATE

VERSION: Final = 1
"""Raised with every change of a node id or a route."""


def tool_loop(nodes: Mapping[str, Node]) -> Topology:
    """The topology, with `nodes` for its five node ids."""
    return Topology(
        name="tool_loop",
        version=VERSION,
        state=STATE,
        nodes=(
            NodeSpec(
                "entry", nodes["entry"], purpose="Begin a turn, or take up what it waits for", calls=(MEMORY_LOAD,)
            ),
            NodeSpec(
                "memory_prepare",
                nodes["memory_prepare"],
                purpose="Put what is remembered before the model",
                calls=(MEMORY_LOAD,),
            ),
            NodeSpec(
                "model",
                nodes["model"],
                pauses=True,
                purpose="Call the model with the loaded tools",
                calls=(MODEL_COMPLETE, APPROVALS_OPEN),
            ),
            NodeSpec(
                "gate",
                nodes["gate"],
                pauses=True,
                purpose="Load toolsets, ask for approvals, run what is allowed",
                limit="max_iterations",
                calls=(TOOLS_RUN, APPROVALS_OPEN, APPROVALS_READ),
            ),
            NodeSpec("final", nodes["final"], purpose="Settle the status"),
        ),
        edges=(
            Switch("entry", routes.after_entry, {"pending": "gate", "fresh": "memory_prepare"}),
            Goto("memory_prepare", "model"),
            Switch("model", routes.after_model, {"tools": "gate", "text": "final"}),
            Switch("gate", routes.after_gate, {"awaiting": "final", "error": "final", "more": "model"}),
            Goto("final", END),
        ),
        entries={FRESH: "entry", PauseKind.APPROVAL.value: "entry"},
        limits=RunLimits(counted={"max_iterations": MAX_ITERATIONS}),
        statuses={PENDING: Outcome.RUNNING, AWAITING_HITL: Outcome.AWAITING},
    )
