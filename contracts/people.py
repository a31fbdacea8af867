"""What a turn asks of people: requests, what they are frozen to, and the verdicts read back."""

from datetime import datetime
from enum import StrEnum

from contracts.frozen import Tolerant


class PauseKind(StrEnum):
    """What a turn can wait for; a topology names an entry node for each kind that it uses."""

    APPROVAL = "approval"
    """A gated call, a checkpoint, or an effect whose outcome a person must settle."""
    CLARIFICATION = "clarification"
    CLIENT_RUN = "client_run"


class RequestKind(StrEnum):
    """What one request asks of a person."""

    APPROVAL = "approval"
    EFFECT = "effect"
    """Settle what a crash left unknown."""


class RequestRef(Tolerant):
    """A request as the workflow knows it; bodies and verdicts stay in Postgres."""

    request_id: str
    kind: RequestKind = RequestKind.APPROVAL
    call_id: str
    tool: str
    expires_at: datetime | None = None


class GatedCall(Tolerant):
    """One call of a round for which an approval must be opened."""

    call_id: str
    tool: str
    rule: str
    """The rule that fired, for the record (S0-69)."""


class VerdictState(StrEnum):
    """The states of an approval before it is executed (design section 5)."""

    PENDING = "pending"
    APPROVED = "approved"
    EDITED = "edited"
    REJECTED = "rejected"
    RESPONDED = "responded"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    WITHDRAWN = "withdrawn"
    SETTLED = "settled"
    """An effect whose outcome a person stated."""
    UNREADABLE = "unreadable"
    """No record, wrong digest, unknown status: stays paused (S0-36)."""


class Verdict(Tolerant):
    """A decision as read from its durable record; never stored anywhere else (S0-37)."""

    request_id: str
    call_id: str
    tool: str = ""
    state: VerdictState
    comment: str = ""
    decided_by: str = ""
