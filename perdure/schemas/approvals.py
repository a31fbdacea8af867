"""What the API answers about approvals: the exact call, who may decide on it, what was decided."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import ConfigDict, Field

from perdure.schemas.answers import Answer


def signed_in_words(data: object) -> str:
    """How a decider was signed in, for a line of an approval's history; empty where it is not on record.

    `data` is the entry's data, a decision or a vote: whatever has `signed_in`.
    """
    signed_in = data.get("signed_in") if isinstance(data, Mapping) else None
    if not isinstance(signed_in, Mapping):
        return ""
    words = _WAYS.get(str(signed_in.get("how")), "")
    made, invited = (_people(signed_in, name) for name in ("created_by", "invited_by"))
    if made:
        words += f" created by {made}"
    if invited:
        words += f" (account opened by invitation of {invited})"
    return f"signed in by {words}" if words else ""


def _people(signed_in: Mapping[str, Any], what: str) -> str:
    through = signed_in.get(f"{what}_through")
    others = [each.get("by") for each in through if isinstance(each, Mapping)] if isinstance(through, list) else []
    return " through ".join(str(name) for name in (signed_in.get(what), *others) if name)


_WAYS = {
    "password": "password",
    "registration": "password",
    "invitation": "password",
    "token": "token",
    "chat": "chat token",
    "local": "local token",
    "link": "local link",
    "oidc": "organization",
    "unknown": "a session of unknown origin",
}


class Vote(Answer):
    """A decision that one person took in one seat."""

    model_config = ConfigDict(serialize_by_alias=True)

    by: str
    seat: str | None = Field(default=None, alias="for")
    """Whose seat it was, where the decider stood in for somebody; written `for` in JSON."""
    decision: str
    at: datetime | None = None
    comment: str | None = None
    counts: bool = True
    """No longer, where the owner of the seat has lost the role since; nor where the owner is none of the named
    reviewers, and another such vote counts."""
    signed_in: dict[str, Any] | None = None
    """How the decider was signed in: `how`, and where there are such people `created_by` and `invited_by`, with
    `created_by_through` and `invited_by_through`. Empty where it was erased or not recorded."""


class Fallback(Answer):
    """Whose an approval becomes where nobody decides."""

    reviewer: str | None = None
    at: datetime | None = None


class Approval(Answer):
    """A call that waits for, or has got, a reviewer's decision."""

    model_config = ConfigDict(serialize_by_alias=True)

    id: str
    status: str
    tool: str
    """Empty at a checkpoint on an answer."""
    kind: str = "approval"
    """`approval` of a call, or a `checkpoint` on what came of one."""
    turn_id: str = ""
    conversation_id: str = ""
    agent: str = ""
    args: dict[str, Any] = {}
    """The frozen arguments: exactly these will run."""
    args_schema: dict[str, Any] = Field(default={}, alias="schema")
    """What the arguments must fit, also after an edit; written `schema` in JSON."""
    revision: dict[str, Any] | None = None
    """Who has changed the arguments while votes are missing, and what they were before (`args_before`)."""
    digest: str = ""
    """What a decision must name, so that it is about this call and no other."""
    effect: str = ""
    risk: str = ""
    description: str = ""
    says: str = ""
    """The tool's own sentence about this call, made from its arguments."""
    args_brief: str = ""
    """The arguments on one line, the beginning of them where they are long."""
    preview: dict[str, Any] | None = None
    """Only for reviewers, where one approval is asked for: what a look at the target found (`at`, `before`, `after`,
    or `fault`); None where the tool has none, empty where nobody has asked for it."""
    last_approved: dict[str, Any] | None = None
    """Only where one approval is asked for: the call of this tool that was approved last before it."""
    rule: str = ""
    checkpoint: str = ""
    reason: str = ""
    """The rule's message: why a person is asked."""
    result: Any = None
    """At a checkpoint: what there is to look at."""
    prompt_excerpt: str = ""
    requested_by: str = ""
    requested_at: datetime | None = None
    expires_at: datetime | None = None
    on_timeout: str = ""
    """`deny`, or `escalate` where it goes to another role first."""
    version: int = 1
    reviewer_role: str = ""
    """Who decides must have it at that moment."""
    reviewers: list[str] = []
    """The only ones with that role who may decide; empty: whoever has it."""
    quorum: int = 1
    """How many of them must approve the same call."""
    votes: list[Vote] = []
    assignee: str | None = None
    """On whose list it is."""
    fallback: Fallback | None = None
    claimed_by: str | None = None
    """While it is claimed nobody else may decide; it lapses at `claimed_until`."""
    claimed_until: datetime | None = None
    escalated_at: datetime | None = None
    ready_at: datetime | None = None
    """Decided, it does not start before; until then it may be withdrawn."""
    reject_reasons: list[str] = []
    """Reasons that the policy offers."""
    outdated: str | None = None
    """What has changed since it was opened, so that its call would not run; who asks anew gets another approval."""
    allowed_decisions: list[str] = []
    """What the caller may decide."""
    decision: dict[str, Any] | None = None
    decided_by: str | None = None
    decided_at: datetime | None = None
    withdrawal: dict[str, Any] | None = None
    """Who took it back, when and why."""
    history: list[dict[str, Any]] = []
    """Only where one approval is asked for."""
    links: dict[str, str] = {}

    @property
    def approving(self) -> int:
        """How many votes count towards the quorum now."""
        return sum(vote.counts and vote.decision in ("approve", "edit") for vote in self.votes)


class Counts(Answer):
    """What waits, in numbers."""

    waiting: int
    mine: int
    """Those that the caller may decide."""
    expiring: int
    by: dict[str, dict[str, int]] = {}
    """How many wait by `agent`, `tool`, `risk` and `role`."""


class OwnDecision(Answer):
    """A decision of the caller's, and what became of it."""

    id: str
    """The approval's."""
    decision: str
    at: datetime
    comment: str = ""
    voided_at: datetime | None = None
    """Since an edit by somebody else it is for a call that nobody asks for any more."""
    tool: str = ""
    says: str = ""
    args_brief: str = ""
    kind: str = "approval"
    checkpoint: str = ""
    agent: str = ""
    risk: str = ""
    requested_by: str = ""
    status: str
    """The approval's, now."""
    ready_at: datetime | None = None
    call_state: str | None = None
    call_result: str = ""
    """The beginning of what the call answered."""
    turn_id: str
    turn_status: str


class ItemAnswer(Answer):
    """What became of one item of a batch: its new status, or why not."""

    id: str
    status: str | None = None
    error: dict[str, Any] | None = None
    """`code`, `message` and `details`, as in every error, and the `status` that it would have alone."""


class AuditEntry(Answer):
    """One row of the audit trail."""

    seq: int | None = None
    """Its place in the tenant's chain."""
    kind: str
    subject: str = ""
    at: datetime | None = None
    actor: str | None = None
    """A user's name; None is the engine itself."""
    data: dict[str, Any] | None = None
    erased: bool = False
    """The data went with a person; the row still verifies."""


class Delegation(Answer):
    """Somebody decides in another's place until a date."""

    id: str
    by: str = ""
    """In whose place."""
    to: str
    until: datetime


class Ageing(Answer):
    """How long what waits for a role, or for one person, has waited."""

    role: str = ""
    assignee: str | None = None
    agent: str = ""
    waiting: int = 0
    oldest_at: datetime | None = None
    next_expiry_at: datetime | None = None
    fallback: Fallback | None = None
    """Who gets it next, and when the first of them."""
    buckets: dict[str, int] = {}
    """How many by age: `1h`, `1d`, `3d`, `older`."""
