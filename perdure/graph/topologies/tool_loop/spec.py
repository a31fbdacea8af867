"""The topology `tool_loop`: five nodes and their routes."""

from collections.abc import Mapping
from typing import Final, Literal

from perdure.contracts.activities import (
    APPROVALS_OPEN,
    APPROVALS_READ,
    MEMORY_LOAD,
    MODEL_COMPLETE,
    TOOLS_CHECK,
    TOOLS_RUN,
)
from perdure.contracts.approvals import PauseKind
from perdure.core.calls.endings import MAX_CONTINUATIONS
from perdure.graph.nodes.fields import (
    AWAITING_HITL,
    BUDGET,
    CONTINUATION,
    CONTROL,
    CONVERSATION,
    IDENTITY,
    MAX_ITERATIONS,
    MEMORY,
    PENDING,
    REVIEW,
)
from perdure.graph.nodes.skills import ends_with_note
from perdure.graph.spec import (
    END,
    FRESH,
    RENEWED,
    Edge,
    Goto,
    Node,
    NodeSpec,
    Outcome,
    RunLimits,
    State,
    Switch,
    Topology,
)
from perdure.graph.state import Field, StateSchema

VERSION: Final = 3
"""Increases with every change of a node, a route or the state."""


def tool_loop(nodes: Mapping[str, Node], version: int = VERSION) -> Topology:
    """Returns the topology in a version, with `nodes` for its five node ids."""
    return Topology(
        name="tool_loop",
        version=version,
        state=STATE if version > 2 else STATE_2 if version > 1 else STATE_1,
        nodes=_nodes(nodes, version),
        edges=_edges(version),
        entries={FRESH: "entry", PauseKind.APPROVAL.value: "entry", **({RENEWED: "model"} if version > 1 else {})},
        limits=RunLimits(
            counted={"max_iterations": MAX_ITERATIONS} | ({"continuations": MAX_CONTINUATIONS} if version > 1 else {})
        ),
        statuses={PENDING: Outcome.RUNNING, AWAITING_HITL: Outcome.AWAITING},
    )


def _nodes(bodies: Mapping[str, Node], version: int) -> tuple[NodeSpec, ...]:
    return (
        NodeSpec("entry", bodies["entry"], purpose="Start a turn, or resume a paused one", calls=(MEMORY_LOAD,)),
        NodeSpec(
            "memory_prepare",
            bodies["memory_prepare"],
            purpose="Add memory to the model's context",
            calls=(MEMORY_LOAD,),
        ),
        NodeSpec(
            "model",
            bodies["model"],
            pauses=True,
            purpose="Call the model with the loaded tools",
            limit="continuations" if version > 1 else "",
            calls=(MODEL_COMPLETE, APPROVALS_OPEN),
        ),
        NodeSpec(
            "gate",
            bodies["gate"],
            pauses=True,
            purpose="Load toolsets, request approvals, run what is allowed",
            limit="max_iterations",
            calls=(TOOLS_CHECK, TOOLS_RUN, APPROVALS_OPEN, APPROVALS_READ),
        ),
        NodeSpec("final", bodies["final"], purpose="Set the status"),
    )


def _edges(version: int) -> tuple[Edge, ...]:
    answer = {"tools": "gate", "text": "final"}
    return (
        Switch("entry", after_entry, {"pending": "gate", "fresh": "memory_prepare"}),
        Goto("memory_prepare", "model"),
        Switch("model", after_answer if version < 3 else after_skills, {"continue": "model", **answer})
        if version > 1
        else Switch("model", after_model, answer),
        Switch("gate", after_gate, {"awaiting": "final", "error": "final", "more": "model"}),
        Goto("final", END),
    )


# The round to run is `pending_tool_calls`; `settled_calls` has the calls of it that ran before a pause. Decisions are
# never in the state: they are read from their records every time. Whether the round was announced follows from its
# requests, so there is no flag for it. Messages are replaced and not added, because a paused round is removed and
# restored whole. The user is a name and a role here; the turn's row has the owner.
RUN: Final = (
    Field("run_id", ""),
    Field("started_at", None),
    Field("ended_at", None),
    Field("duration_ms", None),
    Field("done", False),
    Field("awaiting_approval", False),
    Field("memory_context_loaded", False),
    Field("ttft_emitted", False),
)
TOOLSETS: Final = (Field("loaded_toolsets", {}),)
"""The loaded toolsets by name; True if the tools that write are included. The agent sets the default (`toolsets:`)."""

STATE_1: Final = StateSchema((*IDENTITY, *CONTROL, *CONVERSATION, *BUDGET, *REVIEW, *MEMORY, *RUN, *TOOLSETS))
"""The state of version 1."""
STATE_2: Final = StateSchema((*STATE_1.own, *CONTINUATION))
"""The state of version 2."""
LOADING: Final = (
    Field("injected_skill_ids", []),
    Field("selected_skill_ids", []),
    Field("skills_explained", False),
)
STATE: Final = StateSchema((*STATE_2.own, *LOADING))


# The routers read only the state; the order of their tests is the priority.
async def after_entry(state: State) -> Literal["pending", "fresh"]:
    """Routes a waiting round, from the state or the store, to the gate, since it needs no memory again."""
    return "pending" if state["pending_mutation"] and state["error"] is None else "fresh"


async def after_model(state: State) -> Literal["tools", "text"]:
    """Routes calls to the gate. A text ends the turn without a call that judges it; so do an error and a limit."""
    return "tools" if state["pending_tool_calls"] else "text"


async def after_answer(state: State) -> Literal["continue", "tools", "text"]:
    """Routes an answer that was cut to the model again, which continues it, unless an error or a pause comes first."""
    if state["continuation"] and state["error"] is None and state["status"] != AWAITING_HITL:
        return "continue"
    return await after_model(state)


async def after_skills(state: State) -> Literal["continue", "tools", "text"]:
    """Routes an answer whose marker has loaded a skill to the model again. If the answer only names skills that cannot
    be loaded, the model is called again, once."""
    label = await after_answer(state)
    if label != "text" or state["error"] is not None or state["status"] == AWAITING_HITL:
        return label
    return "continue" if state["selected_skill_ids"] or ends_with_note(state) else "text"


async def after_gate(state: State) -> Literal["awaiting", "error", "more"]:
    """Routes to a pause for a decision, to the end after an error or at a limit, or to the model with the results."""
    if state["awaiting_approval"]:
        return "awaiting"
    return "error" if state["error"] is not None else "more"
