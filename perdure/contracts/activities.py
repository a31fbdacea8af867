"""The typed activity references: the only way by which a workflow reaches an activity.

A reference says the public name, the kind (and so the queue), the two types, the time-outs and the retry class.
tests/repo checks that each has exactly one implementation.
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Generic, TypeVar

from pydantic import Field, JsonValue

from perdure.contracts.agents import TurnPlan
from perdure.contracts.approvals import GatedCall, Question, RequestRef, Verdict
from perdure.contracts.calls import ModelCall, ModelReply, ToolCall, ToolOutcome
from perdure.contracts.context_assembly import AssembleCall, Assembled, ContextMemory
from perdure.contracts.errors import Problem
from perdure.contracts.events import PendingEvent
from perdure.contracts.memory import FactsAnswer, FactsCall
from perdure.contracts.messages import MessageRef
from perdure.contracts.skills import is_empty
from perdure.contracts.turns import (
    FinishAsk,
    Finished,
    Kind,
    Limits,
    Routing,
    StopAsk,
    StopRead,
    TurnAddress,
    TurnInput,
    Usage,
)
from perdure.contracts.values import Tolerant

# --- The names by which clients reach workflows.

TURN_RUN = "TurnRun"
TURN_WAIT = "TurnWait"
TOOL_PREVIEW = "ToolPreview"

RING = "ring"
"""Signal with a `Bell`: look again. Any number, any time, from anyone: it carries no verdict."""

SEARCH_TENANT = "PerdureTenant"
SEARCH_AGENT = "PerdureAgent"
SEARCH_CONVERSATION = "PerdureConversation"
SEARCH_STATUS = "PerdureStatus"


def search_values(turn: TurnInput, status: str) -> dict[str, str]:
    """What an operator filters turns by in the Temporal Web UI; set where a run begins, which costs no event."""
    return {
        SEARCH_TENANT: turn.address.tenant_id,
        SEARCH_AGENT: turn.agent_id,
        SEARCH_CONVERSATION: turn.address.conversation_id,
        SEARCH_STATUS: status,
    }


# --- Opening the requests of a pause and reading their verdicts.


class ApprovalStatus(StrEnum):
    """What an approval is (design section 5)."""

    PENDING = "pending"
    APPROVED = "approved"
    EDITED = "edited"
    REJECTED = "rejected"
    RESPONDED = "responded"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    WITHDRAWN = "withdrawn"
    RESERVED = "reserved"
    DONE = "done"
    FAILED = "failed"
    OUTCOME_UNKNOWN = "outcome_unknown"


class OpenAsk(Tolerant):
    """The input of `approvals.open`: all requests of one pause, opened in one transaction."""

    address: TurnAddress
    agent_id: str
    agent_version: str
    gated: tuple[GatedCall, ...] = ()
    unknown: tuple[GatedCall, ...] = ()
    """Calls whose effect a person must settle."""
    questions: tuple[Question, ...] = Field(default=(), exclude_if=is_empty)
    """What the turn's own user is asked."""
    snapshot: dict[str, JsonValue] = {}
    """Token usage, injected skills and entities at the pause, shown to the reviewer (S0-67)."""
    events: tuple[PendingEvent, ...] = ()


class Opened(Tolerant):
    """The requests that are now open."""

    requests: tuple[RequestRef, ...] = ()
    decided: bool = False
    """Something of it was decided before it was opened again: its bell has rung already, so look at once."""
    problem: Problem | None = None


class VerdictsAsk(Tolerant):
    """The input of `approvals.read`."""

    address: TurnAddress
    requests: tuple[RequestRef, ...]
    events: tuple[PendingEvent, ...] = ()


class Verdicts(Tolerant):
    """What the durable records say now, one for each request asked about."""

    verdicts: tuple[Verdict, ...] = ()
    limits: Limits | None = Field(default=None, exclude_if=is_empty)
    """The turn's, where it was asked to have one raised."""
    problem: Problem | None = None


# --- Asking for the preview of a call that waits for its reviewer: ids only, the call is read from Postgres.


class PreviewAsk(Tolerant):
    """Of which approval."""

    address: TurnAddress
    approval_id: str
    routing: Routing


class PreviewKept(Tolerant):
    """Whether there is a new one: a call that was decided meanwhile keeps what its reviewer saw."""

    kept: bool


# --- Loading what a fresh turn needs, in one activity.


class LoadAsk(Tolerant):
    """The input of `memory.load`."""

    address: TurnAddress
    agent_id: str
    agent_version: str
    events: tuple[PendingEvent, ...] = ()


class TurnContext(Tolerant):
    """What a fresh turn starts from."""

    plan: TurnPlan | None = None
    user_message: MessageRef | None = None
    user_name: str = ""
    user_role: str = ""
    metadata: dict[str, JsonValue] = {}
    """The turn's request metadata."""
    working: dict[str, JsonValue] = {}
    """Working-memory fields that mirror state (S0-16)."""
    injected_fields: int = 0
    """How many working-memory fields the memory message shows; its text stays in Postgres, fixed for the turn."""
    episodes: int = Field(default=0, exclude_if=is_empty)
    """How many past episodes it shows."""
    injected: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """Skills that earlier turns of the conversation have injected (S0-31)."""
    pending: tuple[RequestRef, ...] = ()
    """Requests of this turn that were opened before: a cold resume finds its gate here (S0-27)."""
    pending_round: MessageRef | None = None
    """The assistant message whose calls those requests gate."""
    earlier: tuple[MessageRef, ...] = ()
    """The rounds before that one which have run, each with its answers."""
    restored: dict[str, JsonValue] = Field(default={}, exclude_if=is_empty)
    """State as the pause's snapshot kept it: of a checkpoint, and of a gate in a turn that had loaded skills."""
    used: Usage = Usage()
    """What the turn has used so far; counts where a gate is found, for the calls before it are not asked again."""
    events_written: int = 0
    """The number of the last event that the turn's nodes have left behind; a turn started again goes on from there."""
    context: ContextMemory | None = Field(default=None, exclude_if=is_empty)
    """For an agent that puts a context together."""
    problem: Problem | None = None


In = TypeVar("In")
Out = TypeVar("Out")


class RetryClass(StrEnum):
    """How an activity is retried; perdure/core/calls/retries.py has the numbers."""

    UNTIL_BACK = "until_back"
    """Until Postgres is back: opening, reading verdicts and stops, finishing."""
    PROVIDER = "provider"
    """Provider errors are capped; a 429 sets the next delay."""
    TOOL = "tool"
    """The effect class decides what a repeated attempt does."""


@dataclass(frozen=True, slots=True)
class ActivityRef(Generic[In, Out]):
    """An activity by name and type."""

    name: str
    kind: Kind
    input: type[In]
    output: type[Out]
    start_to_close: timedelta
    schedule_to_close: timedelta | None
    retry: RetryClass
    brief: bool = False
    """One short transaction that may be repeated: it runs inside the workflow task where the queue of the turns serves
    its kind too (ADR 7)."""


HEARTBEAT_TIMEOUT = timedelta(seconds=5)
"""A killed worker is noticed after this long; every activity beats every second or less (design section 2)."""

MEMORY_LOAD = ActivityRef(
    "memory.load", Kind.MEMORY, LoadAsk, TurnContext, timedelta(seconds=20), None, RetryClass.UNTIL_BACK, brief=True
)
MEMORY_FACTS = ActivityRef(
    "memory.facts",
    Kind.MEMORY,
    FactsCall,
    FactsAnswer,
    timedelta(seconds=10),
    timedelta(seconds=20),
    RetryClass.UNTIL_BACK,
    brief=True,
)
MODEL_COMPLETE = ActivityRef(
    "model.complete", Kind.LLM, ModelCall, ModelReply, timedelta(seconds=600), None, RetryClass.PROVIDER
)
TOOLS_RUN = ActivityRef("tools.run", Kind.TOOLS, ToolCall, ToolOutcome, timedelta(hours=2), None, RetryClass.TOOL)
TOOLS_ASSEMBLE = ActivityRef(
    "tools.assemble", Kind.TOOLS, AssembleCall, Assembled, timedelta(hours=1), None, RetryClass.TOOL
)
TOOLS_PREVIEW = ActivityRef(
    "tools.preview", Kind.TOOLS, PreviewAsk, PreviewKept, timedelta(seconds=10), timedelta(seconds=11), RetryClass.TOOL
)
APPROVALS_OPEN = ActivityRef(
    "approvals.open", Kind.APPROVALS, OpenAsk, Opened, timedelta(seconds=20), None, RetryClass.UNTIL_BACK
)
APPROVALS_READ = ActivityRef(
    "approvals.read",
    Kind.APPROVALS,
    VerdictsAsk,
    Verdicts,
    timedelta(seconds=20),
    timedelta(seconds=120),
    RetryClass.UNTIL_BACK,
    brief=True,
)
TURNS_READ = ActivityRef(
    "turns.read", Kind.TURNS, StopAsk, StopRead, timedelta(seconds=20), None, RetryClass.UNTIL_BACK, brief=True
)
TURNS_FINISH = ActivityRef(
    "turns.finish", Kind.TURNS, FinishAsk, Finished, timedelta(seconds=20), None, RetryClass.UNTIL_BACK, brief=True
)

ALL = (
    *(MEMORY_LOAD, MEMORY_FACTS, MODEL_COMPLETE, TOOLS_RUN, TOOLS_ASSEMBLE, TOOLS_PREVIEW),
    *(APPROVALS_OPEN, APPROVALS_READ, TURNS_READ, TURNS_FINISH),
)
