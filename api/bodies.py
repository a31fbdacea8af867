"""Request bodies. Unknown fields are refused, so that a typing mistake is not ignored."""

from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError

from contracts.agents import DayLimits
from contracts.tables import CLIENT_TABLE, why_no_tables
from contracts.turns import Limits, OnSpent
from policy.admission import OnBusy
from policy.claims import DEFAULT_SECONDS, MOST_SECONDS
from policy.client_tables import contradiction
from policy.decision import Decision
from policy.seats import USER_NAME
from policy.text import is_blank
from store.limits import Raise

Metadata = dict[str, JsonValue]


def _described(metadata: Metadata) -> Metadata:
    given = metadata.get(CLIENT_TABLE)
    if CLIENT_TABLE not in metadata:
        return metadata
    fault = why_no_tables(given)
    if not fault and isinstance(given, dict) and (found := contradiction(given)):
        fault = f"the metadata {CLIENT_TABLE}: {found}"
    if fault:
        raise PydanticCustomError("client_table", "{fault}", {"fault": fault})
    return metadata


TurnMetadata = Annotated[Metadata, AfterValidator(_described)]
"""Of a turn: a table that stays with the client is described as the contract says (S4-44)."""


def _worded(text: str) -> str:
    if is_blank(text):
        raise PydanticCustomError("blank", "must say something; there is nothing but blanks in it")
    return text


Worded = AfterValidator(_worded)
"""Of a text that means nothing when it is blank."""
Seen = AfterValidator(lambda text: "" if is_blank(text) else text)
"""Of a text that need not be there: one that nobody can see is not."""


class Body(BaseModel):
    """A request body."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LimitsBody(Body):
    """A turn's own limits; they may lower the agent's, never raise them."""

    max_tokens: int | None = Field(default=None, ge=1, le=2**53, strict=True)
    max_cost_usd: float | None = Field(default=None, ge=0, le=1e9, strict=True)
    max_iterations: int | None = Field(default=None, ge=1, le=10_000, strict=True)

    on_spent: OnSpent = OnSpent.END
    """`ask`: a limit that is spent pauses the turn for a reviewer, who may raise it."""

    def as_limits(self) -> Limits:
        """As the store takes them; what is not given stays out of the way."""
        return Limits(
            on_spent=self.on_spent,
            max_tokens=self.max_tokens or 2**53,
            max_cost_microusd=2**53 if self.max_cost_usd is None else round(self.max_cost_usd * 1e6),
            max_iterations=self.max_iterations or 10_000,
        )


class RaiseBody(Body):
    """POST /v1/turns/{id}/limits."""

    max_tokens: int | None = Field(default=None, ge=1, le=2**53, strict=True)
    max_cost_usd: float | None = Field(default=None, gt=0, le=1e9, strict=True, allow_inf_nan=False)

    def as_raise(self) -> Raise:
        """As the store takes it."""
        return Raise(self.max_tokens, None if self.max_cost_usd is None else round(self.max_cost_usd * 1e6))


class DayLimitsBody(Body):
    """PUT /v1/budgets. Both fields are named: what is left out by mistake must not lift a limit."""

    max_tokens: int | None = Field(ge=1, le=2**53, strict=True)
    max_cost_usd: float | None = Field(gt=0, le=1e9, strict=True, allow_inf_nan=False)

    def as_limits(self) -> DayLimits:
        """As the store takes them; less than a micro-dollar is one."""
        cost = None if self.max_cost_usd is None else max(1, round(self.max_cost_usd * 1e6))
        return DayLimits(max_tokens=self.max_tokens, max_cost_microusd=cost)


class NewConversation(Body):
    """POST /v1/conversations."""

    agent: str = Field(min_length=1, max_length=64)
    title: str = Field(default="", max_length=200)
    metadata: Metadata = {}


class ConversationPatch(Body):
    """PATCH /v1/conversations/{id}."""

    title: str | None = Field(default=None, max_length=200)
    metadata: Metadata | None = None


Message = Annotated[str, Field(max_length=200_000), Worded]


class NewTurnBody(Body):
    """POST /v1/conversations/{id}/turns."""

    message: Message
    on_busy: OnBusy = OnBusy.REJECT
    limits: LimitsBody | None = None
    """Not used where the message joins a turn under way: that one has its own, as it has its metadata."""
    metadata: TurnMetadata = {}


class ExecuteBody(Body):
    """POST /v1/execute."""

    agent: str = Field(min_length=1, max_length=64)
    message: Message
    conversation_id: str | None = None
    system_prompt: str | None = Field(default=None, max_length=50_000)
    metadata: TurnMetadata = {}
    limits: LimitsBody | None = None


class AnswerBody(Body):
    """POST /v1/turns/{id}/answers/{request_id}."""

    kind: Literal["clarification", "client_run"]
    payload: dict[str, JsonValue]


class FileBody(Body):
    """An upload as its Idempotency-Key is held against."""

    name: str
    media_type: str
    sha256: str


Comment = Annotated[str, Field(max_length=4_000), Seen]
ReasonCode = Annotated[str, Field(max_length=100), Seen]
UserName = Annotated[str, Field(min_length=1, max_length=63)]


class DecisionBody(Body):
    """POST /v1/approvals/{id}/decision."""

    decision: Decision
    digest: str = Field(max_length=128)
    args: dict[str, JsonValue] | None = None
    comment: Comment = ""
    reason_code: ReasonCode = ""


class CommentBody(Body):
    """POST /v1/approvals/{id}/withdraw and /escalate."""

    comment: Comment = ""


class ClaimBody(Body):
    """POST /v1/approvals/{id}/claim."""

    seconds: int = Field(default=DEFAULT_SECONDS, ge=1, le=MOST_SECONDS, strict=True)


class ReleaseBody(Body):
    """POST /v1/approvals/{id}/release."""


class ReassignBody(Body):
    """POST /v1/approvals/{id}/reassign."""

    to: UserName
    comment: Comment = ""


class ItemBody(Body):
    """One decision of many."""

    id: str = Field(max_length=64)
    digest: str = Field(max_length=128)
    decision: Decision
    comment: Comment = ""
    reason_code: ReasonCode = ""


class ManyBody(Body):
    """POST /v1/approvals/decisions."""

    items: tuple[ItemBody, ...] = Field(min_length=1, max_length=100)

    @model_validator(mode="after")
    def _each_once(self) -> "ManyBody":
        if len({item.id for item in self.items}) < len(self.items):
            raise PydanticCustomError("twice", "an approval is decided once: the same id is given twice")
        return self


class DelegationBody(Body):
    """POST /v1/delegations."""

    to: UserName
    until: AwareDatetime


class SettleBody(Body):
    """POST /v1/effects/{key}/settle."""

    outcome: Literal["happened", "did_not_happen"]
    comment: Annotated[str, Field(max_length=4_000), Worded]


Role = Literal["requester", "reviewer", "admin"]


class NewUser(Body):
    """POST /v1/users."""

    name: str = Field(pattern=USER_NAME)
    display_name: str = Field(default="", max_length=100)
    roles: tuple[Role, ...] = ("requester",)


class RolesBody(Body):
    """POST /v1/users/{name}/roles."""

    roles: tuple[Role, ...]


class DraftBody(Body):
    """PUT /v1/prompt-templates/{template}/draft."""

    text: Annotated[str, Field(max_length=50_000), Worded]


class PromotionBody(Body):
    """POST /v1/prompt-versions/{id}/promote."""

    to: Literal["pre_production", "active"]
    digest: str = Field(max_length=128)


class TokenBody(Body):
    """POST /v1/users/{name}/tokens."""

    label: str = Field(default="", max_length=100)
