"""Typed activity references. A workflow reaches an activity only through them.

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
    Finished,
    FinishRequest,
    Kind,
    Limits,
    Routing,
    StopRead,
    StopRequest,
    TurnAddress,
    TurnInput,
    Usage,
)
from perdure.contracts.values import Tolerant

# Names by which clients reach workflows.
TURN_RUN = "TurnRun"
TURN_WAIT = "TurnWait"
TOOL_PREVIEW = "ToolPreview"
TOOL_CHECK = "ToolCheck"

WAKE = "ring"
"""The wake signal: read the records again. Any number can be sent at any time, because it carries no verdict.
"""

SEARCH_TENANT = "PerdureTenant"
SEARCH_AGENT = "PerdureAgent"
SEARCH_CONVERSATION = "PerdureConversation"
SEARCH_STATUS = "PerdureStatus"
HEARTBEAT_TIMEOUT = timedelta(seconds=5)
"""Time after which a killed worker is noticed. Every activity sends a heartbeat at least once a second."""


def search_values(turn: TurnInput, status: str) -> dict[str, str]:
    """Returns the attributes by which an operator filters turns in the Temporal Web UI. They are set at the start of a
    run, which costs no event."""
    return {
        SEARCH_TENANT: turn.address.tenant_id,
        SEARCH_AGENT: turn.agent_id,
        SEARCH_CONVERSATION: turn.address.conversation_id,
        SEARCH_STATUS: status,
    }


class ApprovalStatus(StrEnum):
    """The states of an approval."""

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
    OUTDATED = "outdated"
    """Computed and never stored: the tool or the policy has changed since the request or its approval, so that its call
    would not run."""


class OpenRequest(Tolerant):
    """The input of `approvals.open`: all requests of one pause, opened in one transaction."""

    address: TurnAddress
    agent_id: str
    agent_version: str
    gated: tuple[GatedCall, ...] = ()
    unknown: tuple[GatedCall, ...] = ()
    """Calls whose effect a reviewer must settle."""
    questions: tuple[Question, ...] = Field(default=(), exclude_if=is_empty)
    """Questions for the turn's requester."""
    snapshot: dict[str, JsonValue] = {}
    """Token usage, injected skills and entities at the pause, for the reviewer."""
    events: tuple[PendingEvent, ...] = ()


class Opened(Tolerant):
    """The requests that are now open."""

    requests: tuple[RequestRef, ...] = ()
    decided: bool = False
    """True if a request was decided before it was opened again. Its signal has already been sent, so read the verdicts
    at once."""
    problem: Problem | None = None


class VerdictsRequest(Tolerant):
    """The input of `approvals.read`."""

    address: TurnAddress
    requests: tuple[RequestRef, ...]
    events: tuple[PendingEvent, ...] = ()


class Verdicts(Tolerant):
    """The current verdicts from the durable records, one for each request."""

    verdicts: tuple[Verdict, ...] = ()
    limits: Limits | None = Field(default=None, exclude_if=is_empty)
    """The turn's limits, if the request was to raise one."""
    problem: Problem | None = None


class PreviewRequest(Tolerant):
    """The approval whose preview to make. The input has only ids; the call is read from Postgres."""

    address: TurnAddress
    approval_id: str
    routing: Routing


class PreviewKept(Tolerant):
    """Reports whether a new preview was stored. A call that was decided in the meantime keeps its reviewer's
    preview."""

    kept: bool


class EditRef(Tolerant):
    """A reviewer's edit that is not recorded yet. Its arguments are in the approval's row, under its key."""

    approval_id: str
    digest: str
    proposal: str = ""
    """Distinguishes two requests with the same edit."""

    @property
    def key(self) -> str:
        """Returns the key of the edit's arguments."""
        return self.proposal or self.digest


class CheckRequest(Tolerant):
    """The input of `tools.check`: calls of a round that no person was asked about yet, or an edit. It has only ids; the
    arguments are read from Postgres."""

    address: TurnAddress
    calls: tuple[str, ...] = ()
    """Call ids."""
    edit: EditRef | None = None
    events: tuple[PendingEvent, ...] = ()


class Checked(Tolerant):
    """The calls that their tools' own types refuse, or what they refuse of an edit."""

    answers: tuple[MessageRef, ...] = ()
    """The tool messages of the refused calls, which are settled as failed."""
    fault: str = ""
    """A text if the edit is refused. The reason is in the approval's row."""
    field: str = ""
    """The path of the argument that is refused, with dots."""
    server_changed: bool = Field(default=False, exclude_if=is_empty)
    """True if the tool's MCP server does not list the version of a reissue."""
    problem: Problem | None = None


class EditCheckRequest(Tolerant):
    """The input of the workflow that checks an edit."""

    address: TurnAddress
    edit: EditRef
    routing: Routing


class LoadRequest(Tolerant):
    """The input of `memory.load`. One activity loads the context of a fresh turn."""

    address: TurnAddress
    agent_id: str
    agent_version: str
    events: tuple[PendingEvent, ...] = ()


class TurnContext(Tolerant):
    """The starting point of a fresh turn."""

    plan: TurnPlan | None = None
    user_message: MessageRef | None = None
    user_name: str = ""
    user_role: str = ""
    metadata: dict[str, JsonValue] = {}
    """The turn's request metadata."""
    working: dict[str, JsonValue] = {}
    """Working-memory fields that are also part of the state."""
    injected_fields: int = 0
    """Number of working-memory fields in the memory message. Its text stays in Postgres, fixed for the turn."""
    episodes: int = Field(default=0, exclude_if=is_empty)
    """Number of past episodes in the memory message."""
    injected: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """Skills that earlier turns of the conversation injected."""
    pending: tuple[RequestRef, ...] = ()
    """Requests of this turn that are already open, from which a cold resume continues."""
    pending_round: MessageRef | None = None
    """The assistant message with the calls of those requests."""
    earlier: tuple[MessageRef, ...] = ()
    """The earlier rounds that have run, each with its results."""
    restored: dict[str, JsonValue] = Field(default={}, exclude_if=is_empty)
    """The state from the pause's snapshot: for a checkpoint, and for a gate in a turn that had loaded skills."""
    used: Usage = Usage()
    """The turn's usage so far. Matters for a cold resume, because the earlier calls are not made again."""
    events_written: int = 0
    """Number of the last event of the turn's nodes. A restarted turn continues from there."""
    context: ContextMemory | None = Field(default=None, exclude_if=is_empty)
    """The outputs that earlier turns left for the agent's context assembly; None without one."""
    problem: Problem | None = None


In = TypeVar("In")
Out = TypeVar("Out")


class RetryClass(StrEnum):
    """Classes of retries of activities. The numbers are in perdure/core/calls/retries.py."""

    UNTIL_BACK = "until_back"
    """Retries until Postgres is available again: opening requests, reading verdicts and stops, finishing."""
    PROVIDER = "provider"
    """The number of provider errors is limited; a 429 sets the next delay."""
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
    """One short transaction that can be repeated. It runs inside the workflow task if the turns queue serves its kind
    too (ADR 7)."""
    limits_attempts: bool = False
    """The activity itself ends its attempts, and Temporal repeats them without a maximum."""


MEMORY_LOAD = ActivityRef(
    "memory.load", Kind.MEMORY, LoadRequest, TurnContext, timedelta(seconds=20), None, RetryClass.UNTIL_BACK, brief=True
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
TOOLS_RUN = ActivityRef(
    "tools.run", Kind.TOOLS, ToolCall, ToolOutcome, timedelta(hours=2), None, RetryClass.TOOL, limits_attempts=True
)
TOOLS_ASSEMBLE = ActivityRef(
    "tools.assemble", Kind.TOOLS, AssembleCall, Assembled, timedelta(hours=1), None, RetryClass.TOOL
)
TOOLS_PREVIEW = ActivityRef(
    "tools.preview",
    Kind.TOOLS,
    PreviewRequest,
    PreviewKept,
    timedelta(seconds=10),
    timedelta(seconds=11),
    RetryClass.TOOL,
)
TOOLS_CHECK = ActivityRef(
    "tools.check", Kind.TOOLS, CheckRequest, Checked, timedelta(seconds=120), None, RetryClass.UNTIL_BACK
)
APPROVALS_OPEN = ActivityRef(
    "approvals.open", Kind.APPROVALS, OpenRequest, Opened, timedelta(seconds=20), None, RetryClass.UNTIL_BACK
)
APPROVALS_READ = ActivityRef(
    "approvals.read",
    Kind.APPROVALS,
    VerdictsRequest,
    Verdicts,
    timedelta(seconds=20),
    timedelta(seconds=120),
    RetryClass.UNTIL_BACK,
    brief=True,
)
TURNS_READ = ActivityRef(
    "turns.read", Kind.TURNS, StopRequest, StopRead, timedelta(seconds=20), None, RetryClass.UNTIL_BACK, brief=True
)
TURNS_FINISH = ActivityRef(
    "turns.finish", Kind.TURNS, FinishRequest, Finished, timedelta(seconds=20), None, RetryClass.UNTIL_BACK, brief=True
)

ALL = (
    *(MEMORY_LOAD, MEMORY_FACTS, MODEL_COMPLETE, TOOLS_RUN, TOOLS_ASSEMBLE, TOOLS_PREVIEW, TOOLS_CHECK),
    *(APPROVALS_OPEN, APPROVALS_READ, TURNS_READ, TURNS_FINISH),
)
