"""Events: the names of api.md and the form in which a pure node hands one to the next activity."""

from datetime import datetime

from pydantic import JsonValue

from contracts.frozen import Tolerant

NODE_START = "node_start"
NODE_END = "node_end"
QUEUED = "queued"
READY = "ready"
MESSAGE_JOINED = "message.joined"
"""A message of the user's joins the turn under way: once when it is sent, once when a model call hears it."""
DONE = "done"
STOPPED = "stopped"
COMPLETED = "completed"
WORKFLOW_ERROR = "workflow.error"
WORKFLOW_COMPLETE = "workflow_complete"
GENERATION_START = "generation.start"
GENERATION_COMPLETE = "generation.complete"
TTFT = "ttft"
THINKING = "thinking"
THINKING_COMPLETE = "thinking.complete"
TOKEN = "token"
RESET = "reset"
TOKEN_USAGE = "token.usage"
RATE_LIMIT = "rate_limit"
TRANSIENT_ERROR = "transient_error"
TOOLS_PENDING = "tools.pending"
TOOL_AWAITING_APPROVAL = "tool.awaiting_approval"
TOOL_APPROVED = "tool.approved"
TOOL_DENIED = "tool.denied"
TOOL_EXECUTING = "tool.executing"
TOOL_RESULT = "tool.result"
TOOL_ERROR = "tool.error"
CLARIFICATION_REQUESTED = "clarification.requested"
CLIENT_RUN_REQUESTED = "client_run.requested"
MEMORY_CONTEXT_LOADED = "memory.context.loaded"
MEMORY_SEARCH = "memory.search"
MEMORY_WRITE_CREATED = "memory.write.created"
MEMORY_WRITE_BLOCKED = "memory.write.blocked"
SKILL_SELECTED = "skill.selected"
SKILL_INJECTED = "skill.injected"
HITL_RULE_FIRE = "hitl.rule_fire"
HITL_WARNING = "hitl.warning"
BUDGET = "budget"
STAGE = "stage"
ALARM = "invariant.alarm"
TITLE_GENERATED = "conversation.title.generated"


class PendingEvent(Tolerant):
    """An event that a pure node made; the next activity writes it in its own transaction."""

    kind: str
    at: datetime
    call_id: str | None = None
    data: dict[str, JsonValue] = {}
    number: int = 0
    """Its place among the events of its turn's nodes: an event is written once, however often it is handed over."""
