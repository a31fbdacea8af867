"""Request bodies. Unknown fields are refused, so that a typing mistake is not ignored."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from contracts.turns import Limits
from policy.admission import OnBusy
from policy.decision import Decision

Metadata = dict[str, JsonValue]


class Body(BaseModel):
    """A request body."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LimitsBody(Body):
    """A turn's own limits; they may lower the agent's, never raise them."""

    max_tokens: int | None = Field(default=None, ge=1, le=2**53, strict=True)
    max_cost_usd: float | None = Field(default=None, ge=0, le=1e9, strict=True)
    max_iterations: int | None = Field(default=None, ge=1, le=10_000, strict=True)

    def as_limits(self) -> Limits:
        """As the store takes them; what is not given stays out of the way."""
        return Limits(
            max_tokens=self.max_tokens or 2**53,
            max_cost_microusd=2**53 if self.max_cost_usd is None else round(self.max_cost_usd * 1e6),
            max_iterations=self.max_iterations or 10_000,
        )


class NewConversation(Body):
    """POST /v1/conversations."""

    agent: str = Field(min_length=1, max_length=64)
    title: str = Field(default="", max_length=200)
    metadata: Metadata = {}


class ConversationPatch(Body):
    """PATCH /v1/conversations/{id}."""

    title: str | None = Field(default=None, max_length=200)
    metadata: Metadata | None = None


Message = Annotated[str, Field(min_length=1, max_length=200_000, pattern=r"\S")]


class NewTurnBody(Body):
    """POST /v1/conversations/{id}/turns."""

    message: Message
    on_busy: Literal["reject", "queue", "steer", "replace"] = "reject"
    limits: LimitsBody | None = None
    metadata: Metadata = {}

    def policy(self) -> OnBusy | None:
        """What to do where a turn is open; None for a way that this version does not have."""
        return OnBusy(self.on_busy) if self.on_busy in ("reject", "queue") else None


class ExecuteBody(Body):
    """POST /v1/execute."""

    agent: str = Field(min_length=1, max_length=64)
    message: Message
    conversation_id: str | None = None
    system_prompt: str | None = Field(default=None, max_length=50_000)
    metadata: Metadata = {}
    limits: LimitsBody | None = None


class DecisionBody(Body):
    """POST /v1/approvals/{id}/decision."""

    decision: Decision
    digest: str = Field(max_length=128)
    args: dict[str, JsonValue] | None = None
    comment: str = Field(default="", max_length=4_000)
    reason_code: str = Field(default="", max_length=100)


class SettleBody(Body):
    """POST /v1/effects/{key}/settle."""

    outcome: Literal["happened", "did_not_happen"]
    comment: str = Field(min_length=1, max_length=4_000, pattern=r"\S")


Role = Literal["requester", "reviewer", "admin"]


class NewUser(Body):
    """POST /v1/users."""

    name: str = Field(pattern=r"^[a-z][a-z0-9._-]{0,62}$")
    display_name: str = Field(default="", max_length=100)
    roles: tuple[Role, ...] = ("requester",)


class RolesBody(Body):
    """POST /v1/users/{name}/roles."""

    roles: tuple[Role, ...]


class TokenBody(Body):
    """POST /v1/users/{name}/tokens."""

    label: str = Field(default="", max_length=100)
