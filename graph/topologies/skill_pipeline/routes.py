"""Where a run of `skill_pipeline` goes next. Routers read only state; the order of their tests is the priority."""

from typing import Literal

from graph.nodes.fields import AWAITING_HITL, SYNTHESIS
from graph.spec import State


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
