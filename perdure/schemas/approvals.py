"""Responses about approvals: the exact call, its reviewers and its decisions."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field

from perdure.schemas.base import Answer

_SIGN_IN_METHODS = {
    "password": "with a password",
    "registration": "with a password",
    "invitation": "with a password",
    "token": "with a token",
    "chat": "with a chat token",
    "local": "with a local token",
    "link": "with a local link",
    "oidc": "through the organization",
    "unknown": "in an unknown way",
}


def subject(approval: "Approval") -> str:
    """Returns a short name for the subject of the decision."""
    if approval.kind == "limit":
        return "the turn's limit"
    return (
        f"{approval.tool or 'the answer'} at checkpoint {approval.checkpoint}" if approval.checkpoint else approval.tool
    )


_RELATIONS = {
    "credential": "{by} created the token or session of the {of}",
    "opened_as": "the account of the {of} was opened by a client that was, then or earlier, signed in as {by}",
    "inviter": "{by} invited the {of}, who accepted from the same network address or browser",
    "role_giver": "{by} gave the roles to the {of}, who registered without an invitation",
}


def signed_in_words(data: object) -> str:
    """Describes how a requester or reviewer was signed in, the origin of the account, and the relations of the two, for
    an entry of an approval's history. It is empty if nothing of this is recorded.

    `data` is the data of the entry, a decision or a vote.
    """
    if not isinstance(data, Mapping):
        return ""
    used, asked, account = (_mapping(data, name) for name in ("signed_in", "asked_with", "account"))
    invited, words = _names_of(used, "invited_by"), _credential_words(used)
    if words and invited:
        words += f" (account opened by invitation of {invited})"
    parts = [f"signed in {words}" if words else "", _asked_words(asked), _account_words(account, shown=bool(invited))]
    related = related_words(data.get("related"))
    return "; ".join(filter(None, (*parts, f"related: {related}" if related else "")))


def related_words(related: object) -> str:
    """Describes the relations of a reviewer to the requester; empty if there are none."""
    found = [each for each in related if isinstance(each, Mapping)] if isinstance(related, list) else []
    words = (
        _RELATIONS.get(str(each.get("relation")), "").format(by=each.get("by") or "a user", of=each.get("of"))
        for each in found
    )
    return ", and ".join(filter(None, words))


def _credential_words(used: Mapping[str, Any]) -> str:
    words, made = _SIGN_IN_METHODS.get(str(used.get("how")), ""), _names_of(used, "created_by")
    return f"{words} created by {made}" if words and made else words


def _asked_words(asked: Mapping[str, Any]) -> str:
    words = _credential_words(asked)
    return f"requested {words}" if words else ""


def _account_words(account: Mapping[str, Any], *, shown: bool) -> str:
    """Describes an account's origin. `shown` means that its invitation is described already."""
    invited, opened_as, roles = (_names_of(account, name) for name in ("invited_by", "opened_as", "roles_by"))
    near = " and accepted at the inviter's address" if account.get("invited_near") else ""
    parts = (
        f"account opened by invitation of {invited}{near}" if invited and not (shown and not near) else "",
        "account registered without an invitation" if account.get("opened") == "registration" else "",
        f"account opened by a client signed in as {opened_as}" if opened_as else "",
        f"roles given by {roles}" if roles else "",
    )
    return ", ".join(filter(None, parts))


def _mapping(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = data.get(name)
    return found if isinstance(found, Mapping) else {}


def _names_of(signed_in: Mapping[str, Any], what: str) -> str:
    through = signed_in.get(f"{what}_through")
    others = [each.get("by") for each in through if isinstance(each, Mapping)] if isinstance(through, list) else []
    return " through ".join(str(name) for name in (signed_in.get(what), *others) if name)


class Vote(Answer):
    """A decision of one user, made for themselves or as a delegate."""

    model_config = ConfigDict(serialize_by_alias=True)

    by: str
    delegator: str | None = Field(default=None, alias="for")
    """The user on whose behalf the delegate decided; named `for` in JSON. None if no delegate decided."""
    decision: str
    at: datetime | None = None
    comment: str | None = None
    counts: bool = True
    """False if the user on whose behalf the vote was cast has lost the role since. Also false if that user is not a
    named reviewer and another such vote counts."""
    signed_in: dict[str, Any] | None = None
    """The reviewer's sign-in: `how`, and `created_by` and `invited_by` if there are such users, with
    `created_by_through` and `invited_by_through`. Empty if it was erased or not recorded."""


class Fallback(Answer):
    """The fallback reviewer of an undecided approval."""

    reviewer: str | None = None
    at: datetime | None = None


class MessageSince(Answer):
    """A message that the requester added while the request waited."""

    at: datetime | None = None
    text: str = ""
    """The beginning of the message; empty if it was erased."""


class Approval(Answer):
    """A call that needs, or has received, a reviewer's decision."""

    model_config = ConfigDict(serialize_by_alias=True)

    id: str
    status: str
    tool: str
    """Empty for a checkpoint on an answer."""
    tool_version: str = ""
    """The version of the tool that the request was made for."""
    policy_digest: str = ""
    """The digest of the approval policy in force when the request was made; empty if it was not recorded."""
    kind: str = "approval"
    """`approval` of a call, or a `checkpoint` on the result of one."""
    turn_id: str = ""
    conversation_id: str = ""
    agent: str = ""
    args: dict[str, Any] = {}
    """The pinned arguments: the call runs with exactly these."""
    args_schema: dict[str, Any] = Field(default={}, alias="schema")
    """The schema that the arguments must match, even after an edit; named `schema` in JSON."""
    pending_edit: dict[str, Any] | None = None
    """The user who changed the arguments before the quorum was reached, and the earlier arguments (`args_before`)."""
    digest: str = ""
    """The digest that a decision must name, so that it applies to exactly this call."""
    effect: str = ""
    risk: str = ""
    description: str = ""
    says: str = ""
    """The tool's own sentence about this call, built from its arguments."""
    args_brief: str = ""
    """The arguments on one line, cut if they are long."""
    preview: dict[str, Any] | None = None
    """The preview of the target's state (`at`, `before`, `after`, or `fault`). Only for reviewers, and only for a
    single approval. None if the tool has no preview; empty if none was requested."""
    last_approved: dict[str, Any] | None = None
    """The call of this tool that was approved last before this one. Only for a single approval."""
    rule: str = ""
    checkpoint: str = ""
    reason: str = ""
    """The rule's message: the reason for the request."""
    result: Any = None
    """The result to review, for a checkpoint."""
    prompt_excerpt: str = ""
    messages_since: list[MessageSince] = []
    """The requester's messages that the model had not received when the request was opened, or that joined since. The
    newest is last, and at most 20 are returned. A brief list has only the beginning of the newest."""
    revision: Annotated[int, BeforeValidator(lambda value: value if isinstance(value, int) else 1)] = 1
    """Grows with each such message. A decision names the revision that the reviewer has seen. A server of the release
    before has another value here."""
    requested_by: str = ""
    requested_at: datetime | None = None
    expires_at: datetime | None = None
    on_timeout: str = ""
    """`deny`, or `escalate` if the request goes to another role first."""
    version: int = 1
    reviewer_role: str = ""
    """The role that a reviewer must have at the time of the decision."""
    reviewers: list[str] = []
    """The users with that role who can decide. If empty, all users with the role can."""
    quorum: int = 1
    """The number of reviewers that must approve the same call."""
    votes: list[Vote] = []
    assignee: str | None = None
    """The user to whom the request is assigned."""
    fallback: Fallback | None = None
    claimed_by: str | None = None
    """The holder of the claim. No other user can decide until `claimed_until`, when the claim expires."""
    claimed_until: datetime | None = None
    escalated_at: datetime | None = None
    ready_at: datetime | None = None
    """The earliest start of an approved call. Until then, the approval can be withdrawn."""
    reject_reasons: list[str] = []
    """Reasons that the policy offers."""
    outdated: str | None = None
    """The change since the request was opened that prevents its call; `status` is then `outdated`. The request can be
    rejected, or reissued for the new version."""
    changes: dict[str, Any] | None = None
    """The changes of the tool's new version: each field with `before` and `after`, and `code` with the changed places.
    Only for a single approval that is outdated or was reissued."""
    allowed_decisions: list[str] = []
    """The decisions that the caller can make."""
    related: list[dict[str, Any]] = []
    """The reasons why the caller and the requester of an open request may be one person: `relation`, `of` (`requester`
    or `reviewer`) and `by`. Unless the tenant allows it, the caller then cannot approve a high-risk call."""
    decision: dict[str, Any] | None = None
    decided_by: str | None = None
    decided_at: datetime | None = None
    withdrawal: dict[str, Any] | None = None
    """The user who withdrew it, the time and the reason."""
    history: list[dict[str, Any]] = []
    """The entries of the history. Only for a single approval."""
    links: dict[str, str] = {}

    @property
    def is_open(self) -> bool:
        """True if the request has no decision yet."""
        return self.status == "pending" or (self.status == "outdated" and self.decided_at is None)

    @property
    def approving(self) -> int:
        """The number of votes that count towards the quorum now."""
        return sum(vote.counts and vote.decision in ("approve", "edit") for vote in self.votes)


class Counts(Answer):
    """The numbers of pending approvals."""

    waiting: int
    mine: int
    """The number of those that the caller can decide."""
    expiring: int
    by: dict[str, dict[str, int]] = {}
    """The numbers of pending approvals by `agent`, `tool`, `risk` and `role`."""


class OwnDecision(Answer):
    """A decision of the caller, and its result."""

    id: str
    """The id of the approval."""
    decision: str
    at: datetime
    comment: str = ""
    voided_at: datetime | None = None
    """The time of an edit by another user, after which the decision no longer applies to the requested call."""
    tool: str = ""
    says: str = ""
    args_brief: str = ""
    kind: str = "approval"
    checkpoint: str = ""
    agent: str = ""
    risk: str = ""
    requested_by: str = ""
    status: str
    """The current status of the approval."""
    ready_at: datetime | None = None
    call_state: str | None = None
    call_result: str = ""
    """The beginning of the call's result."""
    turn_id: str
    turn_status: str


class ItemAnswer(Answer):
    """The result of one item of a batch: its new status, or its error."""

    id: str
    status: str | None = None
    error: dict[str, Any] | None = None
    """`code`, `message` and `details`, as in every error, and the `status` that the item would have alone."""


class AuditEntry(Answer):
    """One row of the audit trail."""

    seq: int | None = None
    """The position in the tenant's chain."""
    kind: str
    subject: str = ""
    at: datetime | None = None
    actor: str | None = None
    """The name of a user; None for the engine itself."""
    gateway: str | None = None
    """The name of the gateway that acted on behalf of the user."""
    data: dict[str, Any] | None = None
    erased: bool = False
    """True if the data was erased with a user. The row still verifies."""


class Delegation(Answer):
    """A user decides on behalf of another user until a date."""

    id: str
    by: str = ""
    """The user on whose behalf decisions are made."""
    to: str
    until: datetime


class Ageing(Answer):
    """The waiting times of pending approvals of a role or an assignee."""

    role: str = ""
    assignee: str | None = None
    agent: str = ""
    waiting: int = 0
    oldest_at: datetime | None = None
    next_expiry_at: datetime | None = None
    fallback: Fallback | None = None
    """The next fallback reviewer, and the earliest time at which one receives a request."""
    buckets: dict[str, int] = {}
    """The numbers by age: `1h`, `1d`, `3d`, `older`."""
