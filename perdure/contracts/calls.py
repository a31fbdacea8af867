"""A model call: what a node asks for, what crosses to the worker, what comes back."""

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
    """What a tool promises about its effect (design section 4)."""

    READ = "read"
    """Changes nothing; retried freely."""
    LOCAL = "local"
    """Changes our Postgres; effect and ledger row in one transaction: exactly once."""
    KEYED = "keyed"
    """The target honours an idempotency key: once in effect."""
    OPAQUE = "opaque"
    """The target knows no key: at most once; a crash in between ends in `outcome_unknown`."""


class OutputForm(StrEnum):
    """How a model is made to answer with an object."""

    JSON_SCHEMA = "json_schema"
    FUNCTION = "function_calling"


class OutputAsk(Tolerant):
    """The object that a call is to answer with, in place of words."""

    name: str
    fits: dict[str, JsonValue]
    """Its JSON Schema."""
    form: OutputForm = OutputForm.JSON_SCHEMA


class ModelAsk(Tolerant):
    """What a node asks of the model."""

    messages: tuple[MessageRef, ...]
    """This turn's own messages; the past is added from Postgres up to the turn's start."""
    tools: tuple[str, ...]
    """Names of the tools offered; a call to any other is refused (O-13)."""
    prompt: dict[str, JsonValue] = {}
    """What the system prompt is made from: persona key, user block."""
    extract_pattern: str = ""
    """A regular expression whose first groups are returned in `extracted`, searched in the whole answer."""
    toolsets: dict[str, bool] | None = Field(default=None, exclude_if=lambda loaded: loaded is None)
    """Toolsets that are loaded, by name: whether with the tools that write; None where the graph loads none."""
    stage: str = Field(default="", exclude_if=is_empty)
    """The stage of the agent whose instructions, window and parameters hold for this call. Such a call is the graph's
    own: what the user sends meanwhile waits for another one, as it does where an object is asked for."""
    deaf: bool = Field(default=False, exclude_if=is_empty)
    """What the user sends meanwhile is not for this call, though its answer is the user's: it waits until the turn is
    over and is a turn of its own then."""
    output: OutputAsk | None = Field(default=None, exclude_if=is_empty)
    """None: words and calls. With it nothing is said live, and no message is stored."""
    timeout_seconds: float | None = Field(default=None, gt=0, exclude_if=lambda seconds: seconds is None)
    """All that the provider has for its answer; None is the engine's own."""
    ttft_told: bool = Field(default=False, exclude_if=is_empty)
    """An answer of this run has begun before: its first token is the run's no more (S2-49)."""
    patience_seconds: float | None = Field(default=None, exclude_if=is_empty)
    """Of all attempts together; None for as long as they take."""
    sections: tuple[Source, ...] = Field(default=(), exclude_if=is_empty)
    """Outputs of the turn's context assembly that are put before the conversation."""
    guidance: str = Field(default="", exclude_if=is_empty)
    """What is said with them."""


class ModelCall(Tolerant):
    """The input of `model.complete`: at most 16 KiB however long the conversation is."""

    address: TurnAddress
    call_id: str
    agent_id: str
    agent_version: str
    ask: ModelAsk
    events: tuple[PendingEvent, ...] = ()
    strict: bool = Field(default=False, exclude_if=is_empty)
    """One request for each attempt that lives: a provider's error is the answer, and no other model is asked."""


class ModelReply(Tolerant):
    """A settled model call. `message` is absent where `problem` is set."""

    message: MessageRef | None = None
    extracted: tuple[str, ...] = ()
    value: dict[str, JsonValue] | None = Field(default=None, exclude_if=is_empty)
    """The object that was asked for, as it fits its schema."""
    fault: str = Field(default="", exclude_if=is_empty)
    """Why what was said is no such object."""
    usage: Usage = Usage()
    """Of the attempt that settled."""
    turn_used: Usage | None = Field(default=None, exclude_if=lambda used: used is None)
    """Of the whole turn by then, attempts that broke off too; None where the call was not settled."""
    problem: Problem | None = None
    partial: bool = False
    """True where a stop ended the call and the text so far was kept."""
    joined: tuple[MessageRef, ...] = Field(default=(), exclude_if=is_empty)
    """Messages of the user that joined the turn while it ran, heard by this call: they come before its own."""


# --- A tool call: what crosses to the worker and what comes back.


class PlannedAsk(Tolerant):
    """A call that the graph itself makes, of a tool that needs nobody's leave; its port names it."""

    tool: str
    args: dict[str, JsonValue]
    timeout_seconds: float = 30.0


class ToolAsk(Tolerant):
    """One call of a round, as a node asks for it."""

    call_id: str
    tool: str
    timeout_seconds: float = 30.0
    state: dict[str, JsonValue] = {}
    """The state fields that the tool's card wants."""
    paths: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """Places in its result that rules ask about."""
    args: dict[str, JsonValue] | None = Field(default=None, exclude_if=lambda args: args is None)
    """Of a call that the graph itself makes: its claim plans it. None: a model asked for it."""


class ToolCall(Tolerant):
    """The input of `tools.run`. Arguments and verdict are read from Postgres by (turn, call id)."""

    address: TurnAddress
    agent_id: str
    agent_version: str
    ask: ToolAsk
    events: tuple[PendingEvent, ...] = ()


class CallState(StrEnum):
    """The states of a tool call in the ledger."""

    PLANNED = "planned"
    """A model asked for it; nothing has been done."""
    RESERVED = "reserved"
    """An attempt owns it and may have acted."""
    DONE = "done"
    FAILED = "failed"
    """The tool answered with an error, or refused its arguments."""
    DENIED = "denied"
    """A person or a rule said no."""
    OUTCOME_UNKNOWN = "outcome_unknown"
    """A crash between act and record of an opaque call; a person settles it."""


class ToolOutcome(Tolerant):
    """A settled call, or why it is not settled."""

    call_id: str
    state: CallState
    message: MessageRef | None = None
    """The tool message written for it; absent for `outcome_unknown` and where `problem` is set."""
    patch: dict[str, JsonValue] = {}
    """State updates of a state-aware tool (S0-48)."""
    facts: dict[str, JsonValue] = Field(default={}, exclude_if=is_empty)
    """Plain values of the result at the places asked about; one that is not there is left out."""
    output: JsonValue = Field(default=None, exclude_if=lambda output: output is None)
    """Of a call that the graph made: what the tool answered, whole."""
    problem: Problem | None = None
    """Set where the engine could not run the call at all (stopped, no verdict)."""
