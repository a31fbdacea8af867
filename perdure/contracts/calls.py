"""Model and tool calls: what a node requests, what the worker receives, what it returns."""

from enum import StrEnum

from pydantic import Field, JsonValue

from perdure.contracts.context_assembly import Source
from perdure.contracts.errors import Problem
from perdure.contracts.events import PendingEvent
from perdure.contracts.messages import MessageRef
from perdure.contracts.skills import is_empty
from perdure.contracts.turns import TurnAddress, Usage
from perdure.contracts.values import Tolerant


class EffectClass(StrEnum):
    """A tool's guarantee about its effect."""

    READ = "read"
    """Changes nothing; retried freely."""
    LOCAL = "local"
    """Changes Perdure's Postgres. The effect and its ledger row are one transaction: exactly once."""
    KEYED = "keyed"
    """The target honors an idempotency key: one effect, even if it is called repeatedly."""
    OPAQUE = "opaque"
    """The target does not support keys: at most once. A crash between the effect and its record ends in
    `outcome_unknown`."""


class OutputForm(StrEnum):
    """The ways to make a model answer with an object."""

    JSON_SCHEMA = "json_schema"
    FUNCTION = "function_calling"


class OutputAsk(Tolerant):
    """The object that a call must return instead of text."""

    name: str
    fits: dict[str, JsonValue]
    """Its JSON Schema."""
    form: OutputForm = OutputForm.JSON_SCHEMA


class ModelCallRequest(Tolerant):
    """A model call as a node requests it."""

    messages: tuple[MessageRef, ...]
    """The turn's own messages. The history before the turn is added from Postgres."""
    tools: tuple[str, ...]
    """Names of the tools offered. A call of any other tool is rejected."""
    prompt: dict[str, JsonValue] = {}
    """Parts of the system prompt: persona key and user block."""
    extract_pattern: str = ""
    """A regular expression that is searched in the whole answer; `extracted` has its first groups."""
    skill_marks: bool = Field(default=False, exclude_if=is_empty)
    """True if markers of skills (perdure/core/agents/skill_markers.py) are removed from the answer; `extracted` then
    has the ids that they select."""
    toolsets: dict[str, bool] | None = Field(default=None, exclude_if=lambda loaded: loaded is None)
    """Loaded toolsets by name, with whether their tools that write are included. None if the graph loads none."""
    stage: str = Field(default="", exclude_if=is_empty)
    """The stage of the agent whose instructions, window and parameters apply to this call. Such a call belongs to the
    graph: messages that the user sends during the turn wait for another call, as they do if an object is requested."""
    deaf: bool = Field(default=False, exclude_if=is_empty)
    """True if messages that the user sends during the turn wait until it ends and start their own turn, although the
    answer of this call is for the user."""
    may_continue: bool = Field(default=False, exclude_if=is_empty)
    """True if the graph makes another call to continue an answer that was cut."""
    continues: str | None = Field(default=None, exclude_if=lambda message_id: message_id is None)
    """The id of the cut message that this call continues: its text is added to that message. Empty if the cut answer
    had no text, so that this call answers again. None if this call continues nothing."""
    output: OutputAsk | None = Field(default=None, exclude_if=is_empty)
    """The requested object, which is neither streamed nor stored as a message. None: text and calls."""
    timeout_seconds: float | None = Field(default=None, gt=0, exclude_if=lambda seconds: seconds is None)
    """Time limit for the provider's answer, in seconds. None is the engine's default."""
    ttft_told: bool = Field(default=False, exclude_if=is_empty)
    """True if an earlier answer of this run has begun, so that this call's first token is not the run's first."""
    patience_seconds: float | None = Field(default=None, exclude_if=is_empty)
    """Time limit of all attempts together, in seconds; None for no limit."""
    sections: tuple[Source, ...] = Field(default=(), exclude_if=is_empty)
    """Outputs of the turn's context assembly to put before the conversation."""
    guidance: str = Field(default="", exclude_if=is_empty)
    """The text that introduces them."""


class ModelCall(Tolerant):
    """The input of `model.complete`: a few KiB, at most 64, whatever the length of the conversation and the turn."""

    address: TurnAddress
    call_id: str
    agent_id: str
    agent_version: str
    ask: ModelCallRequest
    events: tuple[PendingEvent, ...] = ()
    strict: bool = Field(default=False, exclude_if=is_empty)
    """One request per attempt: a provider's error is the answer, and no fallback model is used."""


class ModelReply(Tolerant):
    """A settled model call. `message` is absent if `problem` is set."""

    message: MessageRef | None = None
    extracted: tuple[str, ...] = ()
    value: dict[str, JsonValue] | None = Field(default=None, exclude_if=is_empty)
    """The requested object, which fits its schema."""
    fault: str = Field(default="", exclude_if=is_empty)
    """The reason that the answer is not such an object."""
    usage: Usage = Usage()
    """Usage of the attempt that settled."""
    turn_used: Usage | None = Field(default=None, exclude_if=lambda used: used is None)
    """Usage of the whole turn so far, including attempts that broke off. None if the call was not settled."""
    problem: Problem | None = None
    partial: bool = False
    """True if a stop ended the call and the text so far was kept."""
    finish_reason: str = Field(default="", exclude_if=is_empty)
    """The reason with which the model ended its answer (perdure/core/calls/endings.py); empty if it did not end it."""
    truncated: bool = Field(default=False, exclude_if=is_empty)
    """True if the text is cut: at the output limit or by the provider's filter."""
    goes_on: bool = Field(default=False, exclude_if=is_empty)
    """True if the answer is cut and the graph can continue it. `message` is absent then if it had no text."""
    joined: tuple[MessageRef, ...] = Field(default=(), exclude_if=is_empty)
    """Messages of the user that joined the running turn and that this call received. They precede its answer."""


class PlannedAsk(Tolerant):
    """A call that the graph itself makes, of a tool that needs no approval. Its port names it."""

    tool: str
    args: dict[str, JsonValue]
    timeout_seconds: float = 30.0


class ToolCallRequest(Tolerant):
    """One call of a round as a node requests it."""

    call_id: str
    tool: str
    timeout_seconds: float = 30.0
    state: dict[str, JsonValue] = {}
    """The state fields that the tool's card names."""
    paths: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """Paths in the result that rules read."""
    args: dict[str, JsonValue] | None = Field(default=None, exclude_if=lambda args: args is None)
    """Arguments of a call that the graph itself makes: claiming it also records it. None if a model requested it."""


class ToolCall(Tolerant):
    """The input of `tools.run`. Arguments and verdict are read from Postgres by turn and call id."""

    address: TurnAddress
    agent_id: str
    agent_version: str
    ask: ToolCallRequest
    events: tuple[PendingEvent, ...] = ()


class CallState(StrEnum):
    """The states of a tool call in the ledger."""

    PLANNED = "planned"
    """A model requested it; nothing has happened yet."""
    RESERVED = "reserved"
    """An attempt has claimed it and may have acted."""
    DONE = "done"
    FAILED = "failed"
    """The tool returned an error, or rejected its arguments."""
    DENIED = "denied"
    """A reviewer or a rule denied it."""
    OUTCOME_UNKNOWN = "outcome_unknown"
    """A crash between act and record of an opaque call. A reviewer settles it."""


class KnownEnd(StrEnum):
    """The end of a call whose outcome is unknown, as far as it is known."""

    RAISED_BEFORE_SEND = "raised_before_send"
    """The tool raised an error before `context.send` sent a request that can change something."""
    RAISED_AFTER_SEND = "raised_after_send"
    RAISED = "raised"
    """The tool raised an error. It did not use `context.send`, so it is not known what it had sent."""
    ANSWERED_ERROR = "answered_error"
    ANSWER_NOT_READ = "answer_not_read"
    NO_ANSWER = "no_answer"
    """The connection ended before the target answered."""
    TIMED_OUT = "timed_out"
    STOPPED = "stopped"
    """The turn was stopped while the call was running."""
    EARLIER_ATTEMPT = "earlier_attempt"
    """The last attempt did nothing, or raised before it sent a request, but another one may have reached the target."""
    WORKER_LOST = "worker_lost"
    """The worker was lost, or could not record the end."""
    WORKER_HUNG = "worker_hung"
    """The call made its worker hang, so that the worker was ended."""
    TURN_ENDED = "turn_ended"
    """The turn ended before the call's end was recorded."""


class ToolOutcome(Tolerant):
    """A settled call, or why it is not settled."""

    call_id: str
    state: CallState
    message: MessageRef | None = None
    """The tool message that was stored. Absent for `outcome_unknown` and if `problem` is set."""
    patch: dict[str, JsonValue] = {}
    """State updates of a state-aware tool."""
    facts: dict[str, JsonValue] = Field(default={}, exclude_if=is_empty)
    """Plain values at the requested paths of the result. Missing paths are left out."""
    output: JsonValue = Field(default=None, exclude_if=lambda output: output is None)
    """The tool's whole answer to a call that the graph made."""
    problem: Problem | None = None
    """Set if the engine could not run the call at all (stopped, no verdict)."""
