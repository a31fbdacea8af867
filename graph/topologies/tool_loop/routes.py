"""Where a run of `tool_loop` goes next (S2-02, S2-03). Routers read only state; the order of their tests is the
priority."""

from typing import Literal

from graph.spec import State


async def after_entry(state: State) -> Literal["pending", "fresh"]:
    """A round that waits, warm from the state or cold from the store, goes to the gate; it needs no memory again."""
    return "pending" if state["pending_mutation"] and state["error"] is None else "fresh"


async def after_model(state: State) -> Literal["tools", "text"]:
    """Calls go to the gate. A text ends the turn, with no call that judges it (S2-20); so do an error and a limit."""
    return "tools" if state["pending_tool_calls"] else "text"


async def after_gate(state: State) -> Literal["awaiting", "error", "more"]:
    """Somebody must decide; or the gate has failed, or come to a limit; or the model goes on with the results."""
    if state["awaiting_approval"]:
        return "awaiting"
    return "error" if state["error"] is not None else "more"
