"""What a turn asks of people: requests, what they are frozen to, and the verdicts read back."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field, JsonValue

from contracts.frozen import Tolerant
from contracts.messages import MessageRef
from contracts.skills import is_empty


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
    CHECKPOINT = "checkpoint"
    """Look at what a call came to, or at the answer so far, before the turn goes on (S0-65, S0-66)."""
    LIMIT = "limit"
    """Raise the turn's limit, which is spent."""
    CLARIFICATION = "clarification"
    """Answer a question of the turn's."""
    CLIENT_RUN = "client_run"
    """Do work where the data is, and hand in what came of it."""


ANSWERED_BY_CLIENT = frozenset({RequestKind.CLARIFICATION, RequestKind.CLIENT_RUN})
"""Requests that the turn's own user answers, and no reviewer decides."""


class RequestRef(Tolerant):
    """A request as the workflow knows it; bodies and verdicts stay in Postgres."""

    request_id: str
    kind: RequestKind = RequestKind.APPROVAL
    call_id: str
    tool: str
    expires_at: datetime | None = None
    look_at: datetime | None = Field(default=None, exclude_if=is_empty)
    """In place of the expiry: when its last verdict said that it is worth a look."""


class GatedCall(Tolerant):
    """One call of a round, or one checkpoint, for which an approval must be opened."""

    call_id: str
    """A checkpoint has an id of its own; empty for one of no call, which is named as it is asked for."""
    tool: str
    rule: str
    """The rule that fired, for the record (S0-69)."""
    # Left out where they say nothing: gates without rules are recorded so.
    kind: RequestKind = Field(default=RequestKind.APPROVAL, exclude_if=lambda kind: kind is RequestKind.APPROVAL)
    checkpoint: str = Field(default="", exclude_if=is_empty)
    """The name under which the reviewer finds it."""
    message: str = Field(default="", exclude_if=is_empty)
    """The rule's own: why a person is asked."""
    go_on_when_unavailable: bool = Field(default=False, exclude_if=is_empty)
    """Of a checkpoint that says so (S0-68): where it cannot be opened, the turn goes on with a warning."""


class Question(Tolerant):
    """What a turn asks of its own user: a question, or work on the user's machine."""

    call_id: str
    """Empty: it is named by the step after which it is asked."""
    kind: RequestKind
    asked: dict[str, JsonValue]
    """What the client is shown."""
    answer_schema: dict[str, JsonValue]
    """JSON Schema of the answers that count."""


class VerdictState(StrEnum):
    """The states of an approval before it is executed (design section 5), and of a question."""

    PENDING = "pending"
    APPROVED = "approved"
    EDITED = "edited"
    REJECTED = "rejected"
    RESPONDED = "responded"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    WITHDRAWN = "withdrawn"
    ANSWERED = "answered"
    """Of a question: `answer` has what was said."""
    SETTLED = "settled"
    """An effect whose outcome a person stated."""
    UNAVAILABLE = "unavailable"
    """Never asked for: it could not be opened, and its checkpoint lets the turn go on (S0-68). No record says so."""
    UNREADABLE = "unreadable"
    """No record, wrong digest, unknown status: stays paused (S0-36)."""


class Verdict(Tolerant):
    """A decision as read from its durable record; never stored anywhere else (S0-37)."""

    request_id: str
    call_id: str
    tool: str = ""
    state: VerdictState
    comment: str = ""
    is_cut: bool = Field(default=False, exclude_if=is_empty)
    """`comment` is only the start of what was said; the record has all of it."""
    decided_by: str = ""
    round: MessageRef | None = Field(default=None, exclude_if=is_empty)
    """Of an edited checkpoint: the assistant message that makes its call again."""
    answer: dict[str, JsonValue] = Field(default={}, exclude_if=is_empty)
    """Of a question: the payload, as it fits the question's schema."""
    no_record: bool = Field(default=False, exclude_if=is_empty)
    """Unreadable because there is nothing to read: it was never opened, or is not yet."""
    look_at: datetime | None = Field(default=None, exclude_if=is_empty)
    """Of a pending one: when it is worth a look though no bell rings (its new expiry, the end of a hold). Absent where
    the expiry that the request was opened with still stands."""
