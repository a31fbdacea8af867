"""Reading typed values out of a state, which holds plain JSON."""

from contracts.agents import TurnPlan
from contracts.errors import Problem
from contracts.messages import CallRef, MessageRef
from contracts.people import RequestRef
from contracts.pipeline import Bundle, Source
from contracts.tools import ToolOutcome
from contracts.turns import Limits
from graph.spec import State


def messages_of(state: State) -> list[MessageRef]:
    """This turn's messages."""
    found = state["messages"]
    return [MessageRef.model_validate(each) for each in found] if isinstance(found, list) else []


def plan_of(state: State) -> TurnPlan:
    """The plan that the turn pinned."""
    return TurnPlan.model_validate(state["plan"])


def reviewers_of(state: State) -> list[str]:
    """The users who alone may decide, where the agent names them; read without the rest of the plan."""
    plan = state["plan"]
    found = plan.get("reviewers") if isinstance(plan, dict) else None
    return [str(name) for name in found] if isinstance(found, list) else []


def calls_of(state: State, name: str = "pending_tool_calls") -> list[CallRef]:
    """The calls of a round that is to run."""
    found = state[name]
    return [CallRef.model_validate(each) for each in found] if isinstance(found, list) else []


def requests_of(state: State, name: str) -> list[RequestRef]:
    """Requests that a state refers to."""
    found = state[name]
    return [RequestRef.model_validate(each) for each in found] if isinstance(found, list) else []


def outcomes_of(state: State, name: str = "settled_calls") -> dict[str, ToolOutcome]:
    """The calls of a paused round that are settled, by id."""
    found = state[name]
    outcomes = [ToolOutcome.model_validate(each) for each in found] if isinstance(found, list) else []
    return {outcome.call_id: outcome for outcome in outcomes}


def toolsets_of(state: State) -> dict[str, bool]:
    """The toolsets that are loaded: by name, whether with the tools that write."""
    found = state["loaded_toolsets"]
    return {name: writes is True for name, writes in found.items()} if isinstance(found, dict) else {}


def bundles_of(state: State, name: str) -> dict[str, Bundle]:
    """The outputs of a context assembly that a state refers to, by tool, in their order."""
    found = state[name]
    bundles = [Bundle.model_validate(each) for each in found] if isinstance(found, list) else []
    return {bundle.tool: bundle for bundle in bundles}


def sources_of(state: State) -> tuple[Source, ...]:
    """The outputs that are put before the conversation, in a topology that has any."""
    found = state.get("context_sections")
    return tuple(Source.model_validate(each) for each in found) if isinstance(found, list) else ()


def number_of(state: State, name: str) -> int:
    """A counter."""
    found = state[name]
    return found if isinstance(found, int) else 0


def error_of(state: State) -> Problem | None:
    """The problem that ends the run, if there is one."""
    found = state["error"]
    return Problem.model_validate(found) if found else None


def limits_of(state: State) -> Limits:
    """The budget in a state."""
    return Limits(
        max_tokens=number_of(state, "max_tokens"),
        max_cost_microusd=number_of(state, "max_cost_microusd"),
        max_iterations=number_of(state, "max_iterations"),
    )
