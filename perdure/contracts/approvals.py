"""Requests for human input: what a turn asks, the digests they are bound to, and the verdicts."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError

from perdure.contracts.messages import MessageRef
from perdure.contracts.skills import is_empty
from perdure.contracts.values import Frozen, Tolerant, digest_of

HIGH_RISK = "high"
EXPIRES_SECONDS = 604_800
"""Default time until a request expires: seven days."""
_RELIED_ON = {
    "reviewer_role",
    "allow_self_approval",
    "reviewers",
    "quorum",
    "quorum_high_risk",
    "hold_seconds",
    "escalation_role",
}
"""The fields that a decision depends on. If one of them has changed since, the decision is outdated."""


class PauseKind(StrEnum):
    """The reasons for which a turn can wait. A topology names an entry node for each kind that it uses."""

    APPROVAL = "approval"
    """A gated call, a checkpoint, or an effect whose outcome a reviewer must state."""
    CLARIFICATION = "clarification"
    CLIENT_RUN = "client_run"


class RequestKind(StrEnum):
    """The kinds of requests."""

    APPROVAL = "approval"
    EFFECT = "effect"
    """State the outcome of an effect that a crash left unknown."""
    CHECKPOINT = "checkpoint"
    """Review the result of a call, or the answer so far, before the turn continues."""
    LIMIT = "limit"
    """Raise the turn's limit, which is used up."""
    CLARIFICATION = "clarification"
    """Answer a question of the turn."""
    CLIENT_RUN = "client_run"
    """Do work on the client's machine, close to its data, and return the result."""


ANSWERED_BY_CLIENT = frozenset({RequestKind.CLARIFICATION, RequestKind.CLIENT_RUN})
"""Requests that the turn's requester answers; no reviewer decides them."""


class RequestRef(Tolerant):
    """A request as the workflow knows it. Content and verdicts stay in Postgres."""

    request_id: str
    kind: RequestKind = RequestKind.APPROVAL
    call_id: str
    tool: str
    expires_at: datetime | None = None
    look_at: datetime | None = Field(default=None, exclude_if=is_empty)
    """Replaces `expires_at` if the last verdict named a time at which the request must be read again."""


class GatedCall(Tolerant):
    """One call of a round, or one checkpoint, that needs an approval."""

    call_id: str
    """A checkpoint has its own id. Empty for a checkpoint without a call; the step at which it is opened names
    it."""
    tool: str
    rule: str
    """The rule that fired, for the record."""
    # Left out if empty, because gates without rules were recorded that way.
    kind: RequestKind = Field(default=RequestKind.APPROVAL, exclude_if=lambda kind: kind is RequestKind.APPROVAL)
    checkpoint: str = Field(default="", exclude_if=is_empty)
    """The name that the reviewer sees."""
    message: str = Field(default="", exclude_if=is_empty)
    """The rule's text: why a review is required."""
    go_on_when_unavailable: bool = Field(default=False, exclude_if=is_empty)
    """Continues the turn with a warning if this checkpoint cannot be opened."""


class Question(Tolerant):
    """A question of a turn to its requester, or work on the requester's machine."""

    call_id: str
    """Empty: the step after which the question is asked names it."""
    kind: RequestKind
    asked: dict[str, JsonValue]
    """The content that the client shows."""
    answer_schema: dict[str, JsonValue]
    """JSON Schema of a valid answer."""


class VerdictState(StrEnum):
    """The states of an approval before execution, and of a question."""

    PENDING = "pending"
    APPROVED = "approved"
    EDITED = "edited"
    REJECTED = "rejected"
    RESPONDED = "responded"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    WITHDRAWN = "withdrawn"
    ANSWERED = "answered"
    """The user answered a question; `answer` has the content."""
    SETTLED = "settled"
    """A reviewer stated the effect's outcome."""
    UNAVAILABLE = "unavailable"
    """The request could not be opened, and its checkpoint lets the turn continue. No record has this state."""
    UNREADABLE = "unreadable"
    """No record, wrong digest or unknown status. The turn stays paused."""


class Verdict(Tolerant):
    """A decision as read from its durable record, which is the only place where it is stored."""

    request_id: str
    call_id: str
    tool: str = ""
    state: VerdictState
    comment: str = ""
    is_cut: bool = Field(default=False, exclude_if=is_empty)
    """`comment` is only the start of the text; the record has all of it."""
    decided_by: str = ""
    round: MessageRef | None = Field(default=None, exclude_if=is_empty)
    """The assistant message that makes the call of an edited checkpoint again."""
    answer: dict[str, JsonValue] = Field(default={}, exclude_if=is_empty)
    """The answer to a question, which fits the question's schema."""
    no_record: bool = Field(default=False, exclude_if=is_empty)
    """Unreadable because no record exists: the request was never opened, or has not been opened yet."""
    look_at: datetime | None = Field(default=None, exclude_if=is_empty)
    """When to read a pending request again without a signal: at its new expiry, or at the end of its hold. Absent if
    the expiry that the request was opened with is still valid."""


class OnTimeout(StrEnum):
    """The options for a request that has no decision at its deadline."""

    DENY = "deny"
    ESCALATE = "escalate"
    """Escalates once to the policy's escalation role with a new deadline; then denies."""


class RepeatRefused(StrEnum):
    """The options for a call that a turn makes again, with the same arguments, after it was refused."""

    ANSWER = "answer"
    """The model receives the refusal again, and no reviewer is asked."""
    ASK = "ask"
    """A second request is opened."""


def _is_one(value: int) -> bool:
    return value == 1


Reason = Annotated[str, Field(min_length=1, max_length=100)]


class ApprovalPolicy(Frozen):
    """An agent's rules for approvals: reviewers, quorum, deadline, and what happens without a decision."""

    expires_seconds: int = Field(default=EXPIRES_SECONDS, gt=0, le=315_360_000)
    """If an agent does not set this, the deployment's default is used."""
    reviewer_role: str = "reviewer"
    allow_self_approval: bool = False
    # Left out at their defaults, because agents are recorded and versioned without them.
    reviewers: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """The named reviewers, who also need the role. Empty: all users with the role."""
    quorum: int = Field(default=1, ge=1, le=20, exclude_if=_is_one)
    """Number of reviewers that must approve the same call. One rejection or response decides at once."""
    quorum_high_risk: int | None = Field(default=None, ge=1, le=20, exclude_if=is_empty)
    """Quorum for high-risk tools. None: `quorum` applies."""
    on_timeout: OnTimeout = Field(default=OnTimeout.DENY, exclude_if=lambda value: value is OnTimeout.DENY)
    escalation_role: str = Field(default="admin", exclude_if=lambda value: value == "admin")
    """The role of the reviewers after an escalation. The named reviewers no longer count then."""
    fallback_reviewer: str = Field(default="", exclude_if=is_empty)
    """The user who is assigned the request if it stays undecided."""
    fallback_after_seconds: int = Field(default=86_400, gt=0, le=315_360_000, exclude_if=lambda value: value == 86_400)
    hold_seconds: int = Field(default=0, ge=0, le=2_592_000, exclude_if=is_empty)
    """Delay in seconds before an approved call of a high-risk tool starts. Until then it can be withdrawn."""
    repeat_refused: RepeatRefused = Field(
        default=RepeatRefused.ANSWER, exclude_if=lambda value: value is RepeatRefused.ANSWER
    )
    """The rule for a call that the turn makes again after its refusal."""
    reject_reasons: tuple[Reason, ...] = Field(default=(), max_length=50, exclude_if=is_empty)
    """The suggestions for `reason_code`; other values are accepted."""

    @model_validator(mode="after")
    def _can_be_met(self) -> "ApprovalPolicy":
        max_quorum = max(self.quorum, self.quorum_high_risk or 1)
        if len(set(self.reviewers)) < len(self.reviewers):
            raise PydanticCustomError("reviewers", "names the same reviewer twice")
        if self.reviewers and max_quorum > len(self.reviewers):
            raise PydanticCustomError("quorum", "must not exceed the number of reviewers")
        return self

    def quorum_for(self, risk: str) -> int:
        """Returns how many reviewers must approve a call of a tool of this risk."""
        return self.quorum_high_risk if risk == HIGH_RISK and self.quorum_high_risk is not None else self.quorum

    def hold_for(self, risk: str) -> int:
        """Returns the seconds between the approval of such a call and its start."""
        return self.hold_seconds if risk == HIGH_RISK else 0

    @property
    def digest(self) -> str:
        """Digest of all fields that a decision depends on, for any risk."""
        return digest_of(self.model_dump(mode="json", include=_RELIED_ON))

    def digest_for(self, risk: str) -> str:
        """Returns the digest of what applies to a call of this risk. An approval given under another one is
        outdated."""
        applied = {"quorum": self.quorum_for(risk), "quorum_high_risk": None, "hold_seconds": self.hold_for(risk)}
        return self.model_copy(update=applied).digest

    def digests_for(self, risk: str) -> frozenset[str]:
        """Returns the digests of requests that this policy covers: also `digest`, which earlier requests have."""
        return frozenset((self.digest_for(risk), self.digest))
