"""The topology `skill_pipeline`: ten nodes and their routes."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from perdure.contracts.activities import (
    APPROVALS_OPEN,
    APPROVALS_READ,
    MEMORY_LOAD,
    MODEL_COMPLETE,
    TOOLS_CHECK,
    TOOLS_RUN,
    ActivityRef,
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
    INITIAL,
    MAX_ITERATIONS,
    MEMORY,
    PENDING,
    REVIEW,
    SYNTHESIS,
)
from perdure.graph.nodes.skills import ends_with_note
from perdure.graph.spec import (
    END,
    FRESH,
    RENEWED,
    RENEWED_IN_SYNTHESIS,
    Edge,
    Goto,
    Node,
    NodeSpec,
    Outcome,
    Router,
    RunLimits,
    State,
    Switch,
    Topology,
)
from perdure.graph.state import Field, StateSchema

VERSION: Final = 7
"""Increases with every change of a node, a route or the state."""


_PURPOSES: Final = {
    "system_prompt_node": "Choose the persona and the user block",
    "memory_node": "Load memory and earlier requests",
    "resume_guard": "Read the decisions of a gate or a checkpoint",
    "initial_llm_call": "First model call",
    "tool_node": "Gate a round of tool calls, or run it and apply the rules to its results",
    "skill_select_node": "Find the skills that the model selected",
    "skill_inject_node": "Add skills to the context",
    "approval_node": "Open a forced checkpoint",
    "synthesis_llm_call": "Second model call, with the skills",
    "output_format": "Set the status",
}
"""Every node, in order."""
_PAUSING: Final = frozenset({"resume_guard", "initial_llm_call", "tool_node", "approval_node", "synthesis_llm_call"})
_LIMITS_3: Final = {"tool_node": "max_iterations"}
_LIMITS: Final = {**_LIMITS_3, "initial_llm_call": "continuations", "synthesis_llm_call": "continuations"}
_CALLS: Final[Mapping[str, tuple[ActivityRef[Any, Any], ...]]] = {
    "system_prompt_node": (MEMORY_LOAD,),
    "memory_node": (MEMORY_LOAD,),
    "resume_guard": (APPROVALS_READ,),
    "initial_llm_call": (MODEL_COMPLETE, APPROVALS_OPEN),
    "tool_node": (TOOLS_CHECK, TOOLS_RUN, APPROVALS_OPEN),
    "approval_node": (APPROVALS_OPEN,),
    "synthesis_llm_call": (MODEL_COMPLETE, APPROVALS_OPEN),
}


_RENEWALS: Final = {RENEWED: "initial_llm_call", RENEWED_IN_SYNTHESIS: "synthesis_llm_call"}
_RENEWED_SINCE: Final = {RENEWED: 4, RENEWED_IN_SYNTHESIS: 5}


def skill_pipeline(nodes: Mapping[str, Node], version: int = VERSION) -> Topology:
    """Returns the topology in a version, with `nodes` for its ten node ids."""
    return Topology(
        name="skill_pipeline",
        version=version,
        state=STATE if version > 6 else STATE_6 if version > 3 else STATE_3,
        nodes=_nodes(nodes, _LIMITS if version > 3 else _LIMITS_3),
        edges=_edges(version),
        entries={
            FRESH: "system_prompt_node",
            PauseKind.APPROVAL.value: "resume_guard",
            **({entry: node_id for entry, node_id in _RENEWALS.items() if version >= _RENEWED_SINCE[entry]}),
        },
        limits=RunLimits(
            counted={"max_iterations": MAX_ITERATIONS} | ({"continuations": MAX_CONTINUATIONS} if version > 3 else {})
        ),
        statuses={PENDING: Outcome.RUNNING, AWAITING_HITL: Outcome.AWAITING},
    )


def _nodes(bodies: Mapping[str, Node], limits: Mapping[str, str]) -> tuple[NodeSpec, ...]:
    return tuple(
        NodeSpec(
            node_id,
            bodies[node_id],
            pauses=node_id in _PAUSING,
            purpose=purpose,
            limit=limits.get(node_id, ""),
            calls=_CALLS.get(node_id, ()),
        )
        for node_id, purpose in _PURPOSES.items()
    )


def _edges(version: int) -> tuple[Edge, ...]:
    out, tools, initial, synthesis = "output_format", "tool_node", "initial_llm_call", "synthesis_llm_call"
    verdicts = {"paused": out, "replay": tools, "synthesis": synthesis, "proceed": initial}
    first_answer = {"paused": out, "error": out, "tools": tools, "text": "skill_select_node"}
    results = {"paused": out, "limit": out, "initial": initial, "synthesis": synthesis}
    last_answer = {"paused": out, "error": out, "tools": tools, "text": out}
    after_call: Router = after_model_call
    if version > 3:
        after_call = after_answer
        first_answer, last_answer = {**first_answer, "continue": initial}, {**last_answer, "continue": synthesis}
    after_last: Router = after_call
    if version > 6:
        after_last, last_answer = after_synthesis, {**last_answer, "skills": "skill_inject_node"}
    return (
        Goto("system_prompt_node", "memory_node"),
        Goto("memory_node", "resume_guard"),
        Switch("resume_guard", after_resume_guard, verdicts),
        Switch(initial, after_call, first_answer),
        Switch(tools, after_tool_node, results),
        Switch("skill_select_node", after_skill_select, {"selected": "skill_inject_node", "none": "approval_node"}),
        Goto("skill_inject_node", "approval_node"),
        Switch("approval_node", after_approval, {"paused": out, "proceed": synthesis}),
        Switch(synthesis, after_last, last_answer),
        Goto(out, END),
    )


SKILLS: Final = (
    Field("llm_phase", INITIAL),
    Field("extracted", []),
    Field("selected_skill_ids", []),
    Field("injected_skill_ids", []),
    Field("injected_entity_ids", []),
    Field("active_skills", {}),
    Field("skill_injection_done", False),
)

STATE_3: Final = StateSchema((*IDENTITY, *CONTROL, *CONVERSATION, *BUDGET, *SKILLS, *REVIEW, *MEMORY))
"""The state of version 3."""
STATE_6: Final = StateSchema((*STATE_3.own, *CONTINUATION))
"""The state of versions 4 to 6."""
STATE: Final = StateSchema((*STATE_6.own, Field("skills_explained", False)))


# The routers read only the state; the order of their tests is the priority.
async def after_resume_guard(state: State) -> Literal["paused", "replay", "synthesis", "proceed"]:
    """Routes to a pause while the gate is undecided or unreadable, then to calls that a verdict allowed, then to the
    model. After a checkpoint, it is the model of the phase that reached the checkpoint."""
    if state["status"] == AWAITING_HITL:
        return "paused"
    if state["pending_tool_calls"]:
        return "replay"
    return "synthesis" if state["llm_phase"] == SYNTHESIS else "proceed"


async def after_model_call(state: State) -> Literal["paused", "error", "tools", "text"]:
    """Routes to a pause if a spent limit can be raised. An error ends the turn, calls run, and a text continues."""
    if state["status"] == AWAITING_HITL:
        return "paused"
    if state["error"] is not None:
        return "error"
    return "tools" if state["pending_tool_calls"] else "text"


async def after_answer(state: State) -> Literal["paused", "error", "continue", "tools", "text"]:
    """Routes an answer that was cut to its model call again, which continues it."""
    label = await after_model_call(state)
    return "continue" if label == "text" and state["continuation"] else label


async def after_synthesis(state: State) -> Literal["paused", "error", "continue", "tools", "skills", "text"]:
    """Routes an answer of the synthesis that selects another skill to its injection. If the answer only names skills
    that cannot be loaded, the model is called again, once."""
    label = await after_answer(state)
    if label != "text":
        return label
    if state["selected_skill_ids"]:
        return "skills"
    return "continue" if ends_with_note(state) else "text"


async def after_tool_node(state: State) -> Literal["paused", "limit", "initial", "synthesis"]:
    """Routes to a pause for a gate, then to the end at the iteration limit, then to the phase whose model made the
    calls."""
    if state["status"] == AWAITING_HITL:
        return "paused"
    iteration, limit = state["iteration"], state["max_iterations"]
    if not isinstance(iteration, int) or not isinstance(limit, int) or iteration >= limit:
        return "limit"
    return "synthesis" if state["llm_phase"] == SYNTHESIS else "initial"


async def after_skill_select(state: State) -> Literal["selected", "none"]:
    """Routes to the injection if a skill was selected."""
    return "selected" if state["selected_skill_ids"] else "none"


async def after_approval(state: State) -> Literal["paused", "proceed"]:
    """Routes to a pause for a checkpoint, which skips the synthesis."""
    return "paused" if state["status"] == AWAITING_HITL else "proceed"
