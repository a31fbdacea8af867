"""Fields and constants that several topologies share, so that one set of nodes works for all of them.

Money is in micro-dollars. Pinned calls are stored in Postgres; the state has references to them.
"""

from typing import Final

from perdure.contracts.agents import TurnPlan
from perdure.contracts.approvals import RequestRef
from perdure.contracts.calls import ToolOutcome
from perdure.contracts.context_assembly import Bundle, Source
from perdure.contracts.errors import Problem
from perdure.contracts.messages import CallRef, MessageRef, Patch
from perdure.contracts.turns import Limits
from perdure.core.calls.rounds import fold_rounds
from perdure.graph.spec import State
from perdure.graph.state import Field

AWAITING_HITL: Final = "awaiting_hitl"
"""The status of a run that waits for a reviewer."""
PENDING: Final = "pending"
"""The status before the first node."""
INITIAL: Final = "initial"
SYNTHESIS: Final = "synthesis"
"""The second value of `llm_phase`, in a topology that has phases; `INITIAL` is the first."""
MAX_ITERATIONS: Final = 20
"""The default limit of rounds of tool calls."""

TOOL_WRITABLE: Final = frozenset({"recent_entity_context", "consecutive_failed_resolves", "injected_entity_ids"})
"""Fields that a state-aware tool can write."""

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
"""Any user with the role can decide."""
NAMED_INDIVIDUAL: Final = "named_individual"
"""The agent names the reviewers."""

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
CONTINUATION: Final = (Field("continuation", {}),)
"""The continuation that the next model call makes: its `number`, and the `message_id` of the cut answer, which is empty
if that had no text. Empty if the last answer was whole."""
MEMORY: Final = (
    Field("memory_context", {}),
    Field("working", {}),
    Field("recent_entity_context", []),
    Field("consecutive_failed_resolves", 0),
)


def messages_of(state: State) -> list[MessageRef]:
    """Returns the messages in the state of this turn, by reference; earlier turns are not in it."""
    value = state["messages"]
    return [MessageRef.model_validate(each) for each in value] if isinstance(value, list) else []


def plan_of(state: State) -> TurnPlan:
    """Returns the parts of the agent that were pinned at the start of the turn."""
    return TurnPlan.model_validate(state["plan"])


def reviewers_of(state: State) -> list[str]:
    """Returns the only users who can decide, if the agent names them. It reads them without parsing the whole plan."""
    plan = state["plan"]
    value = plan.get("reviewers") if isinstance(plan, dict) else None
    return [str(name) for name in value] if isinstance(value, list) else []


def folded_patch(state: State) -> Patch:
    """Returns the messages with every settled round as part of a range of steps; empty if the state has no messages."""
    if "messages" not in state:
        return {}
    return {"messages": [message.model_dump(mode="json") for message in fold_rounds(messages_of(state))]}


def calls_of(state: State, name: str = "pending_tool_calls") -> list[CallRef]:
    """Returns the calls of a round that will run."""
    value = state[name]
    return [CallRef.model_validate(each) for each in value] if isinstance(value, list) else []


def requests_of(state: State, name: str) -> list[RequestRef]:
    """Returns the requests in the field `name`."""
    value = state[name]
    return [RequestRef.model_validate(each) for each in value] if isinstance(value, list) else []


def outcomes_of(state: State, name: str = "settled_calls") -> dict[str, ToolOutcome]:
    """Returns the settled calls of a paused round, by id."""
    value = state[name]
    outcomes = [ToolOutcome.model_validate(each) for each in value] if isinstance(value, list) else []
    return {outcome.call_id: outcome for outcome in outcomes}


def toolsets_of(state: State) -> dict[str, bool]:
    """Returns the loaded toolsets by name; True if the tools that write are included."""
    value = state["loaded_toolsets"]
    return {name: writes is True for name, writes in value.items()} if isinstance(value, dict) else {}


def bundles_of(state: State, name: str) -> dict[str, Bundle]:
    """Returns the outputs of a context assembly in the field `name`, by tool, in their order."""
    value = state[name]
    bundles = [Bundle.model_validate(each) for each in value] if isinstance(value, list) else []
    return {bundle.tool: bundle for bundle in bundles}


def sources_of(state: State) -> tuple[Source, ...]:
    """Returns the outputs that precede the conversation, in a topology that has any."""
    value = state.get("context_sections")
    return tuple(Source.model_validate(each) for each in value) if isinstance(value, list) else ()


def continuation_of(state: State) -> tuple[int, str]:
    """Returns the number of the continuation that is due, and the id of the message that it continues. Zero and no id
    if none is due, or if the topology makes none."""
    value = state.get("continuation")
    if not isinstance(value, dict) or not value:
        return 0, ""
    number = value.get("number")
    return number if isinstance(number, int) else 0, str(value.get("message_id") or "")


def number_of(state: State, name: str) -> int:
    """Returns the counter `name`, or 0."""
    value = state[name]
    return value if isinstance(value, int) else 0


def error_of(state: State) -> Problem | None:
    """Returns the problem that ends the run, or None."""
    value = state["error"]
    return Problem.model_validate(value) if value else None


def limits_of(state: State) -> Limits:
    """Returns the limits of the turn: tokens, money and iterations."""
    return Limits(
        max_tokens=number_of(state, "max_tokens"),
        max_cost_microusd=number_of(state, "max_cost_microusd"),
        max_iterations=number_of(state, "max_iterations"),
    )
