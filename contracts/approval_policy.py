"""Who decides on an agent's gated calls: its `approvals:`."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from contracts.digests import digest_of
from contracts.frozen import Frozen
from contracts.skills import is_empty

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
