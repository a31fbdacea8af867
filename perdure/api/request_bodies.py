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
from perdure.contracts.memory import CLIENT_TABLE, client_tables_fault
from perdure.contracts.turns import Limits, OnSpent
from perdure.contracts.values import canonical_json
from perdure.core.approvals.decisions import DEFAULT_CLAIM_SECONDS, MAX_CLAIM_SECONDS, USER_NAME, Decision
from perdure.core.audit import ExportedHead
from perdure.core.identity import MAX_SUBJECT_CHARACTERS, is_subject
from perdure.core.memory.files import find_contradiction
from perdure.core.text import is_blank
from perdure.core.turns import OnBusy
from perdure.store.approvals.decisions import LimitRaise

Metadata = dict[str, JsonValue]
_MAX_DIGITS = 9
MAX_CLIENT_TABLE_BYTES = 131_072
"""The maximum size of the description of a client's tables. The state of a turn carries it, which must stay below
256 KiB."""


def _check_client_table(metadata: Metadata) -> Metadata:
    table = metadata.get(CLIENT_TABLE)
    if CLIENT_TABLE not in metadata:
        return metadata
    fault = client_tables_fault(table)
    if not fault and isinstance(table, dict) and (contradiction := find_contradiction(table)):
        fault = f"metadata.{CLIENT_TABLE} is invalid: {contradiction}"
    if not fault and len(canonical_json(table).encode()) > MAX_CLIENT_TABLE_BYTES:
        fault = f"metadata.{CLIENT_TABLE} has more than {MAX_CLIENT_TABLE_BYTES:,} bytes; describe fewer columns"
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

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class LimitsBody(Body):
    """The limits of one turn. They can lower the agent's limits, never raise them."""

    max_tokens: int | None = Field(default=None, ge=1, le=2**53, strict=True)
    """Tokens of all model calls of the turn; null for the agent's own limit."""
    max_cost_usd: float | None = Field(default=None, ge=0, le=1e9, strict=True)
    """Cost of all model calls of the turn, in US dollars; null for the agent's own limit."""
    max_iterations: int | None = Field(default=None, ge=1, le=10_000, strict=True)
    """Rounds of tool calls; null for the agent's own limit."""

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
    """New limits for a turn that waits because its limits are spent."""

    max_tokens: int | None = Field(default=None, ge=1, le=2**53, strict=True)
    """The new token limit of the whole turn; null leaves it unchanged."""
    max_cost_usd: float | None = Field(default=None, gt=0, le=1e9, strict=True, allow_inf_nan=False)
    """The new cost limit of the whole turn, in US dollars; null leaves it unchanged."""

    def as_raise(self) -> LimitRaise:
        """Returns the raise in the store's form."""
        return LimitRaise(self.max_tokens, None if self.max_cost_usd is None else round(self.max_cost_usd * 1e6))


class DayLimitsBody(Body):
    """The limits of one UTC day for a tenant, a user or an agent. Both fields are required, so that a field omitted by
    mistake cannot lift a limit."""

    max_tokens: int | None = Field(ge=1, le=2**53, strict=True)
    """Tokens a day; null for no limit."""
    max_cost_usd: float | None = Field(gt=0, le=1e9, strict=True, allow_inf_nan=False)
    """US dollars a day; null for no limit."""

    def as_limits(self) -> DayLimits:
        """Returns the limits in the store's form. A cost below one micro-dollar becomes one."""
        cost = None if self.max_cost_usd is None else max(1, round(self.max_cost_usd * 1e6))
        return DayLimits(max_tokens=self.max_tokens, max_cost_microusd=cost)


def _check_subject(text: str) -> str:
    if not is_subject(text):
        raise PydanticCustomError("subject", "must be printable and contain more than white space")
    return text


def _check_printable(text: str) -> str:
    if not text.isprintable():
        raise PydanticCustomError("printable", "must be printable")
    return text


class OnBehalfOf(Body):
    """A person on whose behalf a gateway acts. Only for users with the role `gateway`; else 403
    `on_behalf_of_not_allowed`."""

    subject: Annotated[str, Field(max_length=MAX_SUBJECT_CHARACTERS), AfterValidator(_check_subject)]
    """The gateway's own id of the person, such as an account number. Each subject is a separate user."""
    name: Annotated[str, Field(max_length=100), AfterValidator(_check_printable)] = ""
    """The name that models and reviewers see. Empty leaves it unchanged."""
    role: Literal["requester"] = "requester"
    """The person's role."""


class NewConversation(Body):
    """A new conversation with an agent."""

    agent: str = Field(min_length=1, max_length=64)
    """The agent's id."""
    title: str = Field(default="", max_length=200)
    """The title in lists. Without one, it is the start of the first answered message."""
    metadata: Metadata = {}
    """Any JSON object. It is stored and returned."""
    on_behalf_of: OnBehalfOf | None = None
    """The owner of the conversation, if it is not the caller."""


class ConversationPatch(Body):
    """Changes to a conversation. Fields that are not set stay."""

    title: str | None = Field(default=None, max_length=200)
    """The new title."""
    metadata: Metadata | None = None
    """The new metadata; it replaces the old one."""


Message = Annotated[str, Field(max_length=200_000), NotBlank]


class NewTurnBody(Body):
    """A message that starts a turn."""

    message: Message
    """The user's message."""
    on_busy: OnBusy = OnBusy.REJECT
    """The treatment of the message if the conversation has an open turn."""
    limits: LimitsBody | None = None
    """Ignored if the message is added to an open turn, which keeps its own limits and metadata."""
    metadata: TurnMetadata = {}
    """Any JSON object. Some topologies read it."""
    on_behalf_of: OnBehalfOf | None = None
    """The owner of the conversation, if it is not the caller."""


class ExecuteBody(Body):
    """Runs one turn and returns its result, in a new conversation or an existing one."""

    agent: str = Field(min_length=1, max_length=64)
    """The agent's id."""
    message: Message
    """The user's message."""
    conversation_id: str | None = None
    """An existing conversation of the caller; a new one without it."""
    system_prompt: str | None = Field(default=None, max_length=50_000)
    """The system prompt of this turn, instead of the agent's own."""
    metadata: TurnMetadata = {}
    """Any JSON object. Some topologies read it."""
    limits: LimitsBody | None = None
    """Lower limits for this turn."""
    on_behalf_of: OnBehalfOf | None = None
    """The user of the turn, if it is not the caller."""


class AnswerBody(Body):
    """The answer to a question of a paused turn."""

    kind: Literal["clarification", "client_run"]
    """The kind of the question."""
    payload: dict[str, JsonValue]
    """The answer; it must fit the question's schema."""


class FileBody(Body):
    """The properties of an upload that its idempotency key is compared with."""

    name: str
    """The file's name."""
    media_type: str
    """Its media type."""
    sha256: str
    """The SHA-256 of its bytes, in hexadecimal."""


Comment = Annotated[str, Field(max_length=4_000), BlankAsEmpty]
ReasonCode = Annotated[str, Field(max_length=100), BlankAsEmpty]
UserName = Annotated[str, Field(min_length=1, max_length=63)]
Revision = Annotated[int | None, Field(ge=1, le=2**31 - 1, strict=True)]


class DecisionBody(Body):
    """A reviewer's decision about a call or a checkpoint."""

    decision: Decision
    """A decision from the approval's `allowed_decisions`."""
    digest: str = Field(max_length=128)
    """The digest of the call that the reviewer has seen. Another one is 409 `digest_differs`."""
    revision: Revision = None
    """The approval's `revision` that the reviewer has seen. An older one is 409 `approval_revision_stale`."""
    args: dict[str, JsonValue] | None = None
    """The new arguments, for an edit only."""
    comment: Comment = ""
    """The reason, which the model and the requester read. Required for `reject` and `respond`."""
    reason_code: ReasonCode = ""
    """A code from the approval's `reject_reasons`."""


class CommentBody(Body):
    """A withdrawal or an escalation of an approval."""

    comment: Comment = ""
    """The reason."""


class ClaimBody(Body):
    """Claims an approval, so that other reviewers see who works on it."""

    seconds: int = Field(default=DEFAULT_CLAIM_SECONDS, ge=1, le=MAX_CLAIM_SECONDS, strict=True)
    """Seconds until the claim ends."""


class ReleaseBody(Body):
    """Ends the caller's claim of an approval. It has no fields."""


class ReissueBody(Body):
    """Makes an outdated approval again for the new version of its tool. It has no fields."""


class ReassignBody(Body):
    """Assigns an approval to another reviewer."""

    to: UserName
    """The reviewer's name."""
    comment: Comment = ""
    """The reason."""


class ItemBody(Body):
    """One decision of several."""

    id: str = Field(max_length=64)
    """The approval's id."""
    digest: str = Field(max_length=128)
    """The digest of the call that the reviewer has seen."""
    revision: Revision = None
    """The approval's `revision` that the reviewer has seen. An older one is 409 `approval_revision_stale`."""
    decision: Decision
    """Any decision except an edit."""
    comment: Comment = ""
    """The reason, which the model and the requester read."""
    reason_code: ReasonCode = ""
    """A code from the approval's `reject_reasons`."""


class ManyBody(Body):
    """Several decisions. Each succeeds or fails by itself."""

    items: tuple[ItemBody, ...] = Field(min_length=1, max_length=100)
    """The decisions, at most 100, each for another approval."""

    @model_validator(mode="after")
    def _check_unique_items(self) -> "ManyBody":
        if len({item.id for item in self.items}) < len(self.items):
            raise PydanticCustomError("twice", "contains the same approval id twice; send each id once")
        return self


class DelegationBody(Body):
    """Lets another user decide on the caller's behalf until a time."""

    to: UserName
    """The user's name."""
    until: AwareDatetime
    """The end, with a time zone, in the future."""


class SettleBody(Body):
    """Settles a call whose outcome is unknown."""

    outcome: Literal["happened", "did_not_happen"]
    """The outcome that a person has found."""
    comment: Annotated[str, Field(max_length=4_000), NotBlank]
    """The evidence for the outcome."""


Role = Literal["requester", "reviewer", "admin", "gateway"]


class NewUser(Body):
    """A new user of the tenant, still without a password."""

    name: str = Field(pattern=USER_NAME)
    """The unique name, for sign-in."""
    display_name: str = Field(default="", max_length=100)
    """The name that others see."""
    roles: tuple[Role, ...] = ("requester",)
    """The user's roles."""


class RolesBody(Body):
    """The roles of a user; they replace the old ones."""

    roles: tuple[Role, ...]
    """All roles of the user."""


class DraftBody(Body):
    """The caller's draft of a prompt template."""

    text: Annotated[str, Field(max_length=50_000), NotBlank]
    """The template's text."""


class PromotionBody(Body):
    """Promotes a version of a prompt template."""

    to: Literal["pre_production", "active"]
    """The next stage."""
    digest: str = Field(max_length=128)
    """The digest of the text that the caller has seen. Another one is 409."""


class TokenBody(Body):
    """A new token for a user."""

    label: str = Field(default="", max_length=100)
    """The purpose of the token, shown in lists."""


NewPassword = Annotated[str, Field(min_length=8, max_length=200)]
NewName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9._-]{0,62}$")]
Tenant = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]


class RegisterBody(Body):
    """A user who registers with a name and a password."""

    name: NewName
    """The unique name, for sign-in."""
    password: NewPassword
    """The password, at least 8 characters."""
    display_name: str = Field(default="", max_length=100)
    """The name that others see."""
    invitation: str = Field(default="", max_length=100)
    """The code of an invitation; empty for an open registration."""
    setup_code: str = Field(default="", max_length=100)
    """Required for the first user of a tenant. The start of the stack and `python -m perdure.apps.bootstrap` print it.
    """
    tenant: Tenant | None = None
    """The tenant's id, if the deployment has several."""
    role: JsonValue = None
    """Ignored, like `roles`: only an administrator assigns roles."""
    roles: JsonValue = None
    """Ignored, like `role`."""


class LoginBody(Body):
    """Signs in, with name and password or with a token."""

    name: str = Field(default="", max_length=63)
    """The user's name."""
    password: str = Field(default="", max_length=200)
    """The user's password."""
    token: str = Field(default="", max_length=500)
    """A token of the user, instead of name and password."""
    tenant: Tenant | None = None
    """The tenant's id, if the deployment has several."""

    @model_validator(mode="after")
    def _check_one_method(self) -> "LoginBody":
        if bool(self.token) == bool(self.name and self.password):
            raise PydanticCustomError("one_way", "send either `name` and `password`, or `token`")
        return self


class RefreshBody(Body):
    """Renews a session."""

    refresh_token: str = Field(max_length=200)
    """The refresh token of the last sign-in or renewal. It is valid once."""


class PasswordBody(Body):
    """Sets the caller's password."""

    password: NewPassword
    """The new password, at least 8 characters."""
    current: str = Field(default="", max_length=200)
    """The current password, if there is one."""


class ProfileBody(Body):
    """Changes to the caller's own profile."""

    display_name: str = Field(min_length=1, max_length=100)
    """The name that others see."""
    role: JsonValue = None
    """Ignored, as in a registration."""
    roles: JsonValue = None
    """Ignored, like `role`."""


class InviteBody(Body):
    """Invites a user to the tenant."""

    name: NewName
    """The unique name, for sign-in."""
    display_name: str = Field(default="", max_length=100)
    """The name that others see."""
    roles: tuple[Role, ...] = ("requester",)
    """The roles after the registration."""


class MemberBody(Body):
    """Changes to a member of the tenant. Fields that are not set stay."""

    roles: tuple[Role, ...] | None = None
    """All roles of the member."""
    display_name: str | None = Field(default=None, min_length=1, max_length=100)
    """The name that others see."""
    active: bool | None = Field(default=None, strict=True)
    """False closes the account and ends its sessions; true reopens it."""


class WebhookBody(Body):
    """A webhook of the caller, which announces approvals."""

    url: str = Field(min_length=1, max_length=500)
    """The address that receives the announcements."""
    with_args: bool = Field(default=False, strict=True)
    """Includes the call's arguments in the webhooks of low-risk requests."""


class RuleActionBody(Body):
    """The tenant's action for a rule. It can be stricter than the rule's own, never milder."""

    rule: str = Field(min_length=1, max_length=200)
    """The rule's id."""
    do: str = Field(min_length=1, max_length=40)
    """`require_hitl` for a reviewer's decision, `abort` to end the turn."""


class ExemptionBody(Body):
    """Exempts a tool of the engine from approval, or ends the exemption."""

    tool: str = Field(min_length=1, max_length=200)
    """The tool's name."""
    approval: bool = Field(strict=True)
    """True if the tool needs an approval, false if it is exempt."""


class FourEyesBody(Body):
    """Allows or refuses decisions of related users on high-risk calls."""

    related_decide: bool = Field(strict=True)
    """True if they can, false if such a decision is refused."""


class HeadsBody(Body):
    """Heads of the audit trail that the caller has stored, to verify in addition to those of this deployment's file."""

    heads: tuple[ExportedHead, ...] = Field(max_length=1_000)
    """The heads, as an export contains them."""


# A value that is not a UUID cannot name anything, so it returns 404.
def as_uuid(text: str, kind: str) -> str:
    """Returns `text` as a canonical UUID.

    Raises: CallerError 404 if `text` is not a UUID.
    """
    try:
        return str(UUID(text))
    except ValueError:
        raise CallerError(f"{kind}_not_found", f"No {kind} has this id", status=404) from None


def _conversation_id(conversation_id: Annotated[str, Path(description="Id of the conversation")]) -> str:
    return as_uuid(conversation_id, "conversation")


def _turn_id(turn_id: Annotated[str, Path(description="Id of the turn")]) -> str:
    return as_uuid(turn_id, "turn")


def _approval_id(approval_id: Annotated[str, Path(description="Id of the approval")]) -> str:
    return as_uuid(approval_id, "approval")


def _question_id(request_id: Annotated[str, Path(description="Id of the question")]) -> str:
    return as_uuid(request_id, "question")


def _file_id(file_id: Annotated[str, Path(description="Id of the file")]) -> str:
    return as_uuid(file_id, "file")


def _entity_id(entity_id: Annotated[str, Path(description="Id of the entity")]) -> str:
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


Cursor = Annotated[str | None, Query(description="`next` of the page before; omit it for the first page")]
Limit = Annotated[
    int,
    BeforeValidator(_clamp_number),
    Query(ge=1, description="Values above the list's maximum are reduced to the maximum"),
]
"""The `limit` of a list. The route clamps it to its own maximum."""
