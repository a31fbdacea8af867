"""Fields and words that several topologies share, so that one set of nodes works for all of them.

Money is micro-dollars; frozen calls stay in Postgres, state holds references to them.
"""

from typing import Final

from perdure.contracts.agents import TurnPlan
from perdure.contracts.approvals import RequestRef
from perdure.contracts.calls import ToolOutcome
from perdure.contracts.context_assembly import Bundle, Source
from perdure.contracts.errors import Problem
from perdure.contracts.messages import CallRef, MessageRef
from perdure.contracts.turns import Limits
from perdure.graph.spec import State
from perdure.graph.state import Field

AWAITING_HITL: Final = "awaiting_hitl"
"""The status of a run that waits for a reviewer (S0-11)."""
PENDING: Final = "pending"
"""The status before the first node."""
INITIAL: Final = "initial"
SYNTHESIS: Final = "synthesis"
"""The two values of `llm_phase`, in a topology that has phases."""
MAX_ITERATIONS: Final = 20
"""Rounds of tool calls, unless the agent says otherwise (S0-60)."""

TOOL_WRITABLE: Final = frozenset({"recent_entity_context", "consecutive_failed_resolves", "injected_entity_ids"})
"""Fields that a state-aware tool may write (S0-48)."""

IDENTITY: Final = (
    Field("execution_id", ""),
    Field("conversation_id", ""),
    Field("agent_id", ""),
    Field("agent_type", ""),
    Field("tenant_id", ""),
)
CONTROL: Final = (
    Field("status", PENDING),
    Field("iteration", 0),
    Field("max_iterations", MAX_ITERATIONS),
)
CONVERSATION: Final = (
    Field("system_prompt", ""),
    Field("model", "gpt-4o"),
    Field("user", {}),
    Field("plan", {}),
    Field("metadata", {}),
)
BUDGET: Final = (
    Field("tokens_used", 0),
    Field("cost_microusd", 0),
    Field("max_tokens", 100_000),
    Field("max_cost_microusd", 5_000_000),
)
ROLE_BASED: Final = "role_based"
"""Whoever has the role decides (S0-15)."""
NAMED_INDIVIDUAL: Final = "named_individual"
"""The agent names who decides."""

REVIEW: Final = (
    Field("hitl_required", False),
    Field("hitl_checkpoint_type", ""),
    Field("hitl_approval_id", None),
    Field("hitl_reviewer_id", None),
    Field("hitl_reviewer_strategy", ROLE_BASED),
    Field("pending_tool_calls", []),
    Field("pending_round", None),
    Field("pending_mutation", None),
    Field("settled_calls", []),
)
MEMORY: Final = (
    Field("memory_context", {}),
    Field("working", {}),
    Field("recent_entity_context", []),
    Field("consecutive_failed_resolves", 0),
)


# --- Reading typed values out of a state, which holds plain JSON.


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
