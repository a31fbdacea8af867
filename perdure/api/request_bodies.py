"""Request bodies. Unknown fields are rejected, so that a misspelled field is not ignored."""

from typing import Annotated, Literal
from uuid import UUID

from fastapi import Depends, Path, Query
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    model_validator,
)
from pydantic_core import PydanticCustomError

from perdure.contracts.agents import DayLimits
from perdure.contracts.errors import CallerError
from perdure.contracts.memory import CLIENT_TABLE, Risk, Scope, client_tables_fault
from perdure.contracts.turns import Limits, OnSpent
from perdure.core.approvals.decisions import DEFAULT_CLAIM_SECONDS, MAX_CLAIM_SECONDS, USER_NAME, Decision
from perdure.core.audit import ExportedHead
from perdure.core.memory.documents import PromotionDecision, type_fault
from perdure.core.memory.files import find_contradiction
from perdure.core.text import is_blank
from perdure.core.turns import OnBusy
from perdure.store.approvals.decisions import LimitRaise
from perdure.store.memory import working_memory
from perdure.store.memory.documents import Basis

Metadata = dict[str, JsonValue]
MAX_HITS = 50
MAX_EPISODES = 20
_MAX_DIGITS = 9


def _check_client_table(metadata: Metadata) -> Metadata:
    table = metadata.get(CLIENT_TABLE)
    if CLIENT_TABLE not in metadata:
        return metadata
    fault = client_tables_fault(table)
    if not fault and isinstance(table, dict) and (contradiction := find_contradiction(table)):
        fault = f"metadata.{CLIENT_TABLE} is invalid: {contradiction}"
    if fault:
        raise PydanticCustomError("client_table", "{fault}", {"fault": fault})
    return metadata


TurnMetadata = Annotated[Metadata, AfterValidator(_check_client_table)]
"""The metadata of a turn. If it describes a table that stays with the client, that description is validated."""


def _check_not_blank(text: str) -> str:
    if is_blank(text):
        raise PydanticCustomError("blank", "must contain more than white space")
    return text


NotBlank = AfterValidator(_check_not_blank)
"""Validates a text that must not be blank."""
BlankAsEmpty = AfterValidator(lambda text: "" if is_blank(text) else text)
"""Validates an optional text. A blank text counts as empty."""


class Body(BaseModel):
    """A request body."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LimitsBody(Body):
    """The limits of one turn. They can lower the agent's limits, never raise them."""

    max_tokens: int | None = Field(default=None, ge=1, le=2**53, strict=True)
    max_cost_usd: float | None = Field(default=None, ge=0, le=1e9, strict=True)
    max_iterations: int | None = Field(default=None, ge=1, le=10_000, strict=True)

    on_spent: OnSpent = OnSpent.END
    """`ask`: a spent limit pauses the turn for a reviewer, who can raise it."""

    def as_limits(self) -> Limits:
        """Returns the limits in the store's form. A field that is not set does not restrict."""
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

    def as_raise(self) -> LimitRaise:
        """Returns the raise in the store's form."""
        return LimitRaise(self.max_tokens, None if self.max_cost_usd is None else round(self.max_cost_usd * 1e6))


class DayLimitsBody(Body):
    """PUT /v1/budgets. Both fields are required, so that a field omitted by mistake cannot lift a limit."""

    max_tokens: int | None = Field(ge=1, le=2**53, strict=True)
    max_cost_usd: float | None = Field(gt=0, le=1e9, strict=True, allow_inf_nan=False)

    def as_limits(self) -> DayLimits:
        """Returns the limits in the store's form. A cost below one micro-dollar becomes one."""
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


Message = Annotated[str, Field(max_length=200_000), NotBlank]


class NewTurnBody(Body):
    """POST /v1/conversations/{id}/turns."""

    message: Message
    on_busy: OnBusy = OnBusy.REJECT
    limits: LimitsBody | None = None
    """Ignored if the message is added to an open turn, which keeps its own limits and metadata."""
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
    """The properties of an upload that its idempotency key is compared with."""

    name: str
    media_type: str
    sha256: str


Comment = Annotated[str, Field(max_length=4_000), BlankAsEmpty]
ReasonCode = Annotated[str, Field(max_length=100), BlankAsEmpty]
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

    seconds: int = Field(default=DEFAULT_CLAIM_SECONDS, ge=1, le=MAX_CLAIM_SECONDS, strict=True)


class ReleaseBody(Body):
    """POST /v1/approvals/{id}/release."""


class ReassignBody(Body):
    """POST /v1/approvals/{id}/reassign."""

    to: UserName
    comment: Comment = ""


class ItemBody(Body):
    """One decision of several."""

    id: str = Field(max_length=64)
    digest: str = Field(max_length=128)
    decision: Decision
    comment: Comment = ""
    reason_code: ReasonCode = ""


class ManyBody(Body):
    """POST /v1/approvals/decisions."""

    items: tuple[ItemBody, ...] = Field(min_length=1, max_length=100)

    @model_validator(mode="after")
    def _check_unique_items(self) -> "ManyBody":
        if len({item.id for item in self.items}) < len(self.items):
            raise PydanticCustomError("twice", "contains the same approval id twice; send each id once")
        return self


class DelegationBody(Body):
    """POST /v1/delegations."""

    to: UserName
    until: AwareDatetime


class SettleBody(Body):
    """POST /v1/effects/{key}/settle."""

    outcome: Literal["happened", "did_not_happen"]
    comment: Annotated[str, Field(max_length=4_000), NotBlank]


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

    text: Annotated[str, Field(max_length=50_000), NotBlank]


class PromotionBody(Body):
    """POST /v1/prompt-versions/{id}/promote."""

    to: Literal["pre_production", "active"]
    digest: str = Field(max_length=128)


class TokenBody(Body):
    """POST /v1/users/{name}/tokens."""

    label: str = Field(default="", max_length=100)


NewPassword = Annotated[str, Field(min_length=8, max_length=200)]
NewName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9._-]{0,62}$")]
Tenant = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]


class RegisterBody(Body):
    """POST /v1/auth/register."""

    name: NewName
    password: NewPassword
    display_name: str = Field(default="", max_length=100)
    invitation: str = Field(default="", max_length=100)
    setup_code: str = Field(default="", max_length=100)
    """Required for the first user of a tenant. The start of the stack and `python -m perdure.apps.bootstrap` print it.
    """
    tenant: Tenant | None = None
    role: JsonValue = None
    """Ignored, like `roles`: only an administrator assigns roles."""
    roles: JsonValue = None


class LoginBody(Body):
    """POST /v1/auth/login: with name and password, or with a token."""

    name: str = Field(default="", max_length=63)
    password: str = Field(default="", max_length=200)
    token: str = Field(default="", max_length=500)
    tenant: Tenant | None = None

    @model_validator(mode="after")
    def _check_one_method(self) -> "LoginBody":
        if bool(self.token) == bool(self.name and self.password):
            raise PydanticCustomError("one_way", "send either `name` and `password`, or `token`")
        return self


class RefreshBody(Body):
    """POST /v1/auth/refresh."""

    refresh_token: str = Field(max_length=200)


class PasswordBody(Body):
    """POST /v1/auth/password."""

    password: NewPassword
    current: str = Field(default="", max_length=200)


class ProfileBody(Body):
    """PATCH /v1/auth/me."""

    display_name: str = Field(min_length=1, max_length=100)
    role: JsonValue = None
    """Ignored, as in a registration."""
    roles: JsonValue = None


class InviteBody(Body):
    """POST /v1/team/invitations."""

    name: NewName
    display_name: str = Field(default="", max_length=100)
    roles: tuple[Role, ...] = ("requester",)


class MemberBody(Body):
    """PATCH /v1/team/{name}: changes the fields that are set."""

    roles: tuple[Role, ...] | None = None
    display_name: str | None = Field(default=None, min_length=1, max_length=100)
    active: bool | None = Field(default=None, strict=True)


class WebhookBody(Body):
    """POST /v1/webhooks."""

    url: str = Field(min_length=1, max_length=500)
    with_args: bool = Field(default=False, strict=True)
    """Includes the call's arguments in the webhooks of low-risk requests."""


def _check_document_type(document_type: str) -> str:
    fault = type_fault(document_type)
    if fault is not None:
        raise PydanticCustomError("document_type", "{fault}", {"fault": fault})
    return document_type


Title = Annotated[str, Field(max_length=200), NotBlank]
Content = Annotated[str, Field(max_length=100_000), NotBlank]
Entities = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=100)], ...], Field(max_length=32)]
Sources = Annotated[tuple[Annotated[str, Field(max_length=500)], ...], Field(max_length=20)]
Sha256 = Annotated[str, Field(max_length=64)]


class BasisBody(Body):
    """The evidence of a document version."""

    evidence_summary: str = Field(default="", max_length=2_000)
    source_refs: Sources = ()

    def basis(self) -> Basis:
        """Returns the evidence in the store's form."""
        refs: list[JsonValue] = [*self.source_refs]
        return Basis(self.evidence_summary, refs)


class NewDocument(BasisBody):
    """POST /v1/memory/documents."""

    scope: Scope
    store: str | None = Field(
        default=None,
        max_length=64,
        description="The store's name. Required in the workspace scope, which can have several stores.",
    )
    conversation_id: str | None = Field(
        default=None, max_length=100, description="The conversation, if the document belongs to one."
    )
    path: str = Field(max_length=200)
    type: Annotated[str, AfterValidator(_check_document_type)]
    title: Title
    content: Content
    entities: Entities = ()


class UpdateBody(BasisBody):
    """PUT /v1/memory/documents/{id}."""

    expected_sha256: Sha256
    content: Content
    title: Title | None = None
    entities: Entities | None = None


class EditBody(Body):
    """A text that occurs exactly once, and its replacement."""

    find: str = Field(min_length=1, max_length=100_000)
    replace: str = Field(max_length=100_000)


class PatchBody(BasisBody):
    """PATCH /v1/memory/documents/{id}."""

    expected_sha256: Sha256
    edits: tuple[EditBody, ...] = Field(min_length=1, max_length=50)


class DocumentSearchBody(Body):
    """POST /v1/memory/documents/search."""

    query: Annotated[str, Field(min_length=1, max_length=4_000), NotBlank]
    scope: Scope | None = None
    conversation_id: str | None = Field(default=None, max_length=100)
    limit: int = Field(default=6, ge=1, strict=True, description=f"Values above {MAX_HITS} are reduced to {MAX_HITS}")


class RedactionBody(Body):
    """POST /v1/memory/documents/{id}/versions/{version}/redact."""

    reason: Annotated[str, Field(max_length=1_000), NotBlank]


class StoreBody(Body):
    """PUT /v1/memory/stores/{slug}."""

    archived: bool = Field(strict=True)


class ProposalBody(BasisBody):
    """POST /v1/memory/promotions."""

    document_id: str = Field(max_length=100)
    store: str = Field(max_length=64)
    path: str = Field(max_length=200)
    risk: Risk


class PromotionDecisionBody(Body):
    """POST /v1/memory/promotions/{id}/decision."""

    decision: PromotionDecision
    sha256: Sha256
    comment: Comment = ""


class RuleActionBody(Body):
    """PUT /v1/rules."""

    rule: str = Field(min_length=1, max_length=200)
    do: str = Field(min_length=1, max_length=40)


class ExemptionBody(Body):
    """PUT /v1/rules/tools."""

    tool: str = Field(min_length=1, max_length=200)
    approval: bool = Field(strict=True)
    """True if the tool needs an approval, false if it is exempt."""


FieldName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$")]
EpisodeText = Annotated[str, Field(min_length=1, max_length=4_000, pattern=r"\S")]


class FieldsBody(Body):
    """PUT /v1/memory/working/{conversation_id}."""

    fields: dict[FieldName, JsonValue]
    """Merged into the existing fields; null removes a field."""
    ttl_seconds: int = Field(default=working_memory.TTL_SECONDS, ge=1, le=working_memory.MAX_TTL_SECONDS, strict=True)


class EpisodeBody(Body):
    """POST /v1/memory/episodic."""

    conversation_id: str = Field(max_length=100)
    summary: EpisodeText


class SearchBody(Body):
    """POST /v1/memory/episodic/search."""

    agent: str = Field(min_length=1, max_length=64)
    query: EpisodeText
    limit: int = Field(
        default=3, ge=1, strict=True, description=f"Values above {MAX_EPISODES} are reduced to {MAX_EPISODES}"
    )


class HeadsBody(Body):
    """POST /v1/audit/verify: heads that the caller has stored, in addition to those of this deployment's file."""

    heads: tuple[ExportedHead, ...] = Field(max_length=1_000)


# A value that is not a UUID cannot name anything, so it returns 404.
def as_uuid(text: str, kind: str) -> str:
    """Returns `text` as a canonical UUID.

    Raises: CallerError 404 if `text` is not a UUID.
    """
    try:
        return str(UUID(text))
    except ValueError:
        raise CallerError(f"{kind}_not_found", f"No {kind} has this id", status=404) from None


def _conversation_id(conversation_id: Annotated[str, Path()]) -> str:
    return as_uuid(conversation_id, "conversation")


def _turn_id(turn_id: Annotated[str, Path()]) -> str:
    return as_uuid(turn_id, "turn")


def _approval_id(approval_id: Annotated[str, Path()]) -> str:
    return as_uuid(approval_id, "approval")


def _question_id(request_id: Annotated[str, Path()]) -> str:
    return as_uuid(request_id, "question")


def _file_id(file_id: Annotated[str, Path()]) -> str:
    return as_uuid(file_id, "file")


def _entity_id(entity_id: Annotated[str, Path()]) -> str:
    return as_uuid(entity_id, "entity")


ConversationId = Annotated[str, Depends(_conversation_id)]
TurnId = Annotated[str, Depends(_turn_id)]
ApprovalId = Annotated[str, Depends(_approval_id)]
QuestionId = Annotated[str, Depends(_question_id)]
FileId = Annotated[str, Depends(_file_id)]
EntityId = Annotated[str, Depends(_entity_id)]


def _clamp_number(value: object) -> object:
    """Clamps a number whose digits exceed what can be parsed, like any other value above the list's maximum."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value.lstrip("0")) > _MAX_DIGITS:
        return 10**_MAX_DIGITS
    return value


Limit = Annotated[
    int,
    BeforeValidator(_clamp_number),
    Query(ge=1, description="Values above the list's maximum are reduced to the maximum"),
]
"""The `limit` of a list. The route clamps it to its own maximum."""
