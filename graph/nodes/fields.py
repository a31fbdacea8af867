"""Fields and words that several topologies share, so that one set of nodes works for all of them.

Money is micro-dollars; frozen calls stay in Postgres, state holds references to them.
"""

from typing import Final

from graph.state import Field

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
