"""The topology `skill_pipeline` (S0): ten nodes, every route of S0-01 to S0-09."""

from collections.abc import Mapping
from typing import Final, Literal

from perdure.contracts.activities import APPROVALS_OPEN, APPROVALS_READ, MEMORY_LOAD, MODEL_COMPLETE, TOOLS_RUN
from perdure.contracts.approvals import PauseKind
from perdure.graph.nodes.fields import (
    AWAITING_HITL,
    BUDGET,
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
from perdure.graph.spec import END, FRESH, Goto, Node, NodeSpec, Outcome, RunLimits, State, Switch, Topology
from perdure.graph.state import Field, StateSchema

VERSION: Final = 3
"""Raised with every change of a node id or a route."""


def skill_pipeline(nodes: Mapping[str, Node]) -> Topology:
    """The topology, with `nodes` for its ten node ids."""
    return Topology(
        name="skill_pipeline",
        version=VERSION,
        state=STATE,
        nodes=(
            NodeSpec(
                "system_prompt_node",
                nodes["system_prompt_node"],
                purpose="Choose persona and user block",
                calls=(MEMORY_LOAD,),
            ),
            NodeSpec(
                "memory_node",
                nodes["memory_node"],
                purpose="Load memory and requests opened before",
                calls=(MEMORY_LOAD,),
            ),
            NodeSpec(
                "resume_guard",
                nodes["resume_guard"],
                pauses=True,
                purpose="Read the verdicts of a gate or a checkpoint",
                calls=(APPROVALS_READ,),
            ),
            NodeSpec(
                "initial_llm_call",
                nodes["initial_llm_call"],
                pauses=True,
                purpose="First call of the model",
                calls=(MODEL_COMPLETE, APPROVALS_OPEN),
            ),
            NodeSpec(
                "tool_node",
                nodes["tool_node"],
                pauses=True,
                purpose="Gate a round of tool calls, or run it and ask the rules of its outcomes",
                limit="max_iterations",
                calls=(TOOLS_RUN, APPROVALS_OPEN),
            ),
            NodeSpec("skill_select_node", nodes["skill_select_node"], purpose="Find the skills that the model named"),
            NodeSpec("skill_inject_node", nodes["skill_inject_node"], purpose="Put skills into the context"),
            NodeSpec(
                "approval_node",
                nodes["approval_node"],
                pauses=True,
                purpose="Open a forced checkpoint",
                calls=(APPROVALS_OPEN,),
            ),
            NodeSpec(
                "synthesis_llm_call",
                nodes["synthesis_llm_call"],
                pauses=True,
                purpose="Second call, with the skills",
                calls=(MODEL_COMPLETE, APPROVALS_OPEN),
            ),
            NodeSpec("output_format", nodes["output_format"], purpose="Settle the status"),
        ),
        edges=(
            Goto("system_prompt_node", "memory_node"),
            Goto("memory_node", "resume_guard"),
            Switch(
                "resume_guard",
                after_resume_guard,
                {
                    "paused": "output_format",
                    "replay": "tool_node",
                    "synthesis": "synthesis_llm_call",
                    "proceed": "initial_llm_call",
                },
            ),
            Switch(
                "initial_llm_call",
                after_model_call,
                {
                    "paused": "output_format",
                    "error": "output_format",
                    "tools": "tool_node",
                    "text": "skill_select_node",
                },
            ),
            Switch(
                "tool_node",
                after_tool_node,
                {
                    "paused": "output_format",
                    "limit": "output_format",
                    "initial": "initial_llm_call",
                    "synthesis": "synthesis_llm_call",
                },
            ),
            Switch(
                "skill_select_node",
                after_skill_select,
                {"selected": "skill_inject_node", "none": "approval_node"},
            ),
            Goto("skill_inject_node", "approval_node"),
            Switch(
                "approval_node",
                after_approval,
                {"paused": "output_format", "proceed": "synthesis_llm_call"},
            ),
            Switch(
                "synthesis_llm_call",
                after_model_call,
                {"paused": "output_format", "error": "output_format", "tools": "tool_node", "text": "output_format"},
            ),
            Goto("output_format", END),
        ),
        entries={FRESH: "system_prompt_node", PauseKind.APPROVAL.value: "resume_guard"},
        limits=RunLimits(counted={"max_iterations": MAX_ITERATIONS}),
        statuses={PENDING: Outcome.RUNNING, AWAITING_HITL: Outcome.AWAITING},
    )


# --- The state of `skill_pipeline` (S0-10 to S0-16): what topologies share, and its skills.

SKILLS: Final = (
    Field("llm_phase", INITIAL),
    Field("extracted", []),
    Field("selected_skill_ids", []),
    Field("injected_skill_ids", []),
    Field("injected_entity_ids", []),
    Field("active_skills", {}),
    Field("skill_injection_done", False),
)

STATE: Final = StateSchema((*IDENTITY, *CONTROL, *CONVERSATION, *BUDGET, *SKILLS, *REVIEW, *MEMORY))


# --- Where a run of `skill_pipeline` goes next.
# Routers read only state; the order of their tests is the priority.


async def after_resume_guard(state: State) -> Literal["paused", "replay", "synthesis", "proceed"]:
    """Paused while the gate is undecided or unreadable (S0-03); calls that a verdict freed; else the model
    (S0-04), past a checkpoint that of the phase which came to it."""
    if state["status"] == AWAITING_HITL:
        return "paused"
    if state["pending_tool_calls"]:
        return "replay"
    return "synthesis" if state["llm_phase"] == SYNTHESIS else "proceed"


async def after_model_call(state: State) -> Literal["paused", "error", "tools", "text"]:
    """Paused where a spent limit may be raised; an error ends the turn, tool calls run, text goes on (S0-05, S0-09)."""
    if state["status"] == AWAITING_HITL:
        return "paused"
    if state["error"] is not None:
        return "error"
    return "tools" if state["pending_tool_calls"] else "text"


async def after_tool_node(state: State) -> Literal["paused", "limit", "initial", "synthesis"]:
    """A gate first, then the iteration limit, then back to the model of the phase that asked (S0-06)."""
    if state["status"] == AWAITING_HITL:
        return "paused"
    iteration, most = state["iteration"], state["max_iterations"]
    if not isinstance(iteration, int) or not isinstance(most, int) or iteration >= most:
        return "limit"
    return "synthesis" if state["llm_phase"] == SYNTHESIS else "initial"


async def after_skill_select(state: State) -> Literal["selected", "none"]:
    """Inject what was selected, if anything was (S0-07)."""
    return "selected" if state["selected_skill_ids"] else "none"


async def after_approval(state: State) -> Literal["paused", "proceed"]:
    """A checkpoint skips the synthesis (S0-08)."""
    return "paused" if state["status"] == AWAITING_HITL else "proceed"
