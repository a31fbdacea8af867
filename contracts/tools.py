"""A tool call: what crosses to the worker and what comes back."""

from enum import StrEnum

from pydantic import Field, JsonValue

from contracts.errors import Problem
from contracts.events import PendingEvent
from contracts.frozen import Tolerant
from contracts.messages import MessageRef
from contracts.skills import is_empty
from contracts.turns import TurnAddress


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
