"""Where a run of `context_assembly` goes next (S1-07, S1-35). Routers read only state."""

from typing import Literal

from graph.spec import State


async def after_preflight(state: State) -> Literal["hijacked", "clear"]:
    """The safety verdict decides, and nothing else does (S1-07); what is no plain no is a yes."""
    return "clear" if state["safety_hijacked"] is False else "hijacked"


async def after_context_format(state: State) -> Literal["assembled", "failed"]:
    """A required tool that failed never reaches the navigator (S1-35)."""
    return "assembled" if state["error"] is None else "failed"
