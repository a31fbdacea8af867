"""Events: their names in the API, and the form in which a pure node passes one to the next activity."""

from datetime import datetime
from enum import StrEnum
from typing import Final

from pydantic import JsonValue

from perdure.contracts.values import Tolerant

NODE_START = "node_start"
NODE_END = "node_end"
QUEUED = "queued"
READY = "ready"
MESSAGE_JOINED = "message.joined"
"""A user's message joins the running turn: recorded when it is sent, and again when a model call receives it."""
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
MAX_ALARMS: Final = 32
"""Maximum number of different alarms that a run reports. They are part of an activity's input, which must stay small.
"""


class PendingEvent(Tolerant):
    """An event that a pure node made. The next activity writes it in its own transaction."""

    kind: str
    at: datetime
    call_id: str | None = None
    data: dict[str, JsonValue] = {}
    number: int = 0
    """Its position among the events of the turn's nodes. An event that is passed on again is not written again."""


class AlarmType(StrEnum):
    """The monitored invariants."""

    MODEL_ACCESS_UNAUTHORIZED = "model_access_unauthorized"
    MEMORY_READ_UNAUTHORIZED = "memory_read_unauthorized"
    MEMORY_WRITE_UNAUTHORIZED = "memory_write_unauthorized"
    MEMORY_NOT_APPEND_ONLY = "memory_not_append_only"
    MEMORY_ADVISORY_OVERRIDDEN = "memory_advisory_overridden"
    """An advisory value was read where a decision is made."""
    MULTIPLE_TERMINAL_NODES = "multiple_terminal_nodes"
    UNEXPECTED_ROUTING = "unexpected_routing"
    STATE_MUTATION_OUTSIDE_ALLOWED_NODE = "state_mutation_outside_allowed_node"
    FORBIDDEN_STATE_FIELD_MUTATED = "forbidden_state_field_mutated"
    FORBIDDEN_DATA_IN_TRACE = "forbidden_data_in_trace"
    TRACE_FAILURE_BLOCKING_EXECUTION = "trace_failure_blocking_execution"


class Severity(StrEnum):
    """The severity of an alarm."""

    WARN = "warn"
    ERROR = "error"


class Alarm(Tolerant):
    """One broken invariant, as it is recorded. Alarms are reported and decide nothing."""

    type: AlarmType
    node: str = ""
    """The node; empty if the alarm is about the whole turn."""
    description: str
    """One sentence, without any content of the turn."""
    severity: Severity = Severity.ERROR
    context: dict[str, JsonValue] = {}
    """Names only: the field, the two nodes."""
    trace_id: str = ""
    """The turn's trace id. An alarm in an event log belongs to its turn anyway."""
