"""What a turn asks of people: requests, what they are frozen to, and the verdicts read back."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError

from perdure.contracts.messages import MessageRef
from perdure.contracts.skills import is_empty
from perdure.contracts.values import Frozen, Tolerant, digest_of


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


# --- Who decides on an agent's gated calls: its `approvals:`.

HIGH_RISK = "high"
EXPIRES_SECONDS = 604_800
"""How long a request stays open where nobody says it: seven days (S0-54)."""


class OnTimeout(StrEnum):
    """What becomes of a request that nobody has decided on by its deadline."""

    DENY = "deny"
    ESCALATE = "escalate"
    """Once, to the policy's other role, with a new deadline; then it is denied."""


def _is_one(value: int) -> bool:
    return value == 1


Reason = Annotated[str, Field(min_length=1, max_length=100)]


_RELIED_ON = {
    "reviewer_role",
    "allow_self_approval",
    "reviewers",
    "quorum",
    "quorum_high_risk",
    "hold_seconds",
    "escalation_role",
}
"""What a decision relies on: where one of these has changed since, it is void."""


class ApprovalPolicy(Frozen):
    """Who decides, how many of them, by when, and what becomes of it where nobody does."""

    expires_seconds: int = Field(default=EXPIRES_SECONDS, gt=0, le=315_360_000)
    """An agent that does not say it is loaded with what its deployment says."""
    reviewer_role: str = "reviewer"
    allow_self_approval: bool = False
    # Left out where they say nothing: agents are recorded, and versioned, without them.
    reviewers: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """Users who alone may decide, as long as they have the role; empty for whoever has it (S0-15)."""
    quorum: int = Field(default=1, ge=1, le=20, exclude_if=_is_one)
    """How many people must approve the very same call. One who rejects or responds decides at once."""
    quorum_high_risk: int | None = Field(default=None, ge=1, le=20, exclude_if=is_empty)
    """The same for tools of high risk; None for `quorum`."""
    on_timeout: OnTimeout = Field(default=OnTimeout.DENY, exclude_if=lambda value: value is OnTimeout.DENY)
    escalation_role: str = Field(default="admin", exclude_if=lambda value: value == "admin")
    """Who decides after an escalation; named reviewers count no more then."""
    fallback_reviewer: str = Field(default="", exclude_if=is_empty)
    """The user on whose list it is put where it stays undecided (S0-81)."""
    fallback_after_seconds: int = Field(default=86_400, gt=0, le=315_360_000, exclude_if=lambda value: value == 86_400)
    hold_seconds: int = Field(default=0, ge=0, le=2_592_000, exclude_if=is_empty)
    """An approved call of a tool of high risk starts this much later, and may be withdrawn until then."""
    reject_reasons: tuple[Reason, ...] = Field(default=(), max_length=50, exclude_if=is_empty)
    """What a reviewer is offered as `reason_code`; others may be given (S0-83)."""

    @model_validator(mode="after")
    def _can_be_met(self) -> "ApprovalPolicy":
        most = max(self.quorum, self.quorum_high_risk or 1)
        if len(set(self.reviewers)) < len(self.reviewers):
            raise PydanticCustomError("reviewers", "reviewers names somebody twice")
        if self.reviewers and most > len(self.reviewers):
            raise PydanticCustomError("quorum", "a quorum larger than the number of reviewers can never be met")
        return self

    def quorum_for(self, risk: str) -> int:
        """How many must approve a call of a tool of this risk."""
        return self.quorum_high_risk if risk == HIGH_RISK and self.quorum_high_risk is not None else self.quorum

    def hold_for(self, risk: str) -> int:
        """Seconds between the approval of such a call and its start."""
        return self.hold_seconds if risk == HIGH_RISK else 0

    @property
    def digest(self) -> str:
        """Of all that a decision relies on: an approval that was given under another one is void."""
        return digest_of(self.model_dump(mode="json", include=_RELIED_ON))
