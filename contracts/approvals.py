"""Opening the requests of a pause and reading their verdicts."""

from enum import StrEnum

from pydantic import Field, JsonValue

from contracts.errors import Problem
from contracts.events import PendingEvent
from contracts.frozen import Tolerant
from contracts.people import GatedCall, Question, RequestRef, Verdict
from contracts.skills import is_empty
from contracts.turns import Limits, TurnAddress


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
