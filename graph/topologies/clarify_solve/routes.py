"""Where a run of `clarify_solve` goes next (S4-04 to S4-11). Routers read only what the nodes left in `processing`; a
run that must end goes to the feedback, whose nodes leave its error as it is."""

from typing import Literal

from graph.spec import State
from graph.topologies.clarify_solve.state import text_of


async def at_start(state: State) -> Literal["shortcut", "upload", "request"]:
    """S4-04."""
    return text_of(state, "start") or "request"  # type: ignore[return-value]


async def after_shortcut(state: State) -> Literal["empty", "xml"]:
    """S4-05."""
    return "xml" if text_of(state, "shortcut") else "empty"


async def after_classification(
    state: State,
) -> Literal["palette", "no_data", "question", "visualization", "transformation"]:
    """S4-06. What could not be classified goes to the feedback (S4-25)."""
    return text_of(state, "classified") or "question"  # type: ignore[return-value]


async def after_clarification(
    state: State,
) -> Literal["waiting", "replied", "xsd_retry", "failed", "spent", "run"]:
    """S4-07, after the pause itself."""
    if state["status"] == "awaiting":
        return "waiting"
    if state["error"] is not None:
        return "failed"
    return text_of(state, "clarified") or "run"  # type: ignore[return-value]


async def after_choregraph(state: State) -> Literal["waiting", "retry", "spent", "ran"]:
    """S4-08, after the pause itself."""
    if state["status"] == "awaiting":
        return "waiting"
    if state["error"] is not None:
        return "spent"
    return text_of(state, "choregraph") or "ran"  # type: ignore[return-value]


async def wants_exclusion(state: State) -> bool:
    """S4-08."""
    return text_of(state, "exclusion_asked") == "yes"


async def after_asp(state: State) -> Literal["failed", "api", "web"]:
    """S4-10."""
    if state["error"] is not None:
        return "failed"
    return text_of(state, "asp") or "web"  # type: ignore[return-value]


async def at_viz_entry(state: State) -> Literal["asked", "nothing"]:
    """S4-11."""
    return "nothing" if text_of(state, "viz") == "nothing" or state["error"] is not None else "asked"


async def after_validation(state: State) -> Literal["valid", "retry", "spent"]:
    """S4-27."""
    if state["error"] is not None:
        return "spent"
    return text_of(state, "xml") or "valid"  # type: ignore[return-value]


async def after_viz(state: State) -> Literal["classify", "done"]:
    """S4-11."""
    return "classify" if text_of(state, "marks") == "yes" and state["error"] is None else "done"
