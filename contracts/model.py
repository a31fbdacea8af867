"""A model call: what a node asks for, what crosses to the worker, what comes back."""

from enum import StrEnum

from pydantic import Field, JsonValue

from contracts.errors import Problem
from contracts.events import PendingEvent
from contracts.frozen import Tolerant
from contracts.messages import MessageRef
from contracts.pipeline import Source
from contracts.skills import is_empty
from contracts.turns import TurnAddress, Usage


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
