"""Checks whether a planned tool call can run, and whether an answer to a question is accepted."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from pydantic import JsonValue

from perdure.contracts.agents import ToolCard
from perdure.contracts.approvals import RequestKind
from perdure.contracts.calls import EffectClass
from perdure.contracts.errors import CallerError
from perdure.contracts.values import canonical_json
from perdure.core.approvals.decisions import Decision
from perdure.core.approvals.gates import requires_approval
from perdure.core.calls.arguments import check_arguments
from perdure.core.json_schema import schema_fault
from perdure.core.memory.files import handed_in_fault

NOT_PUBLISHED = "The agent is no longer published"
"""The reason why no call of the agent runs: a start without its app removed the agent and its tools."""
TOOL_CHANGED = "The tool has changed since the request"
"""The reason why a call of an earlier version does not run. Another worker may still have that version."""
OUTDATED_BY_VERSION = (
    "open approvals that this version makes outdated: {count}, of {tools}; reissue or reject them, or publish the old "
    "version again"
)
GRANTED_STATUSES = frozenset({"approved", "edited"})
"""Statuses of an approval whose call is not reserved yet; it can still be withdrawn."""
ALLOWING_STATUSES = GRANTED_STATUSES | {"reserved"}
"""Statuses of an approval that lets its call run. `reserved` means that an earlier attempt has reserved the call."""
DENIED_STATUSES = frozenset({"rejected", "responded", "expired", "withdrawn"})
"""Statuses of an approval that denies its call permanently."""
STATUSES_WITH_REASON = frozenset({"rejected", "responded", "withdrawn"})
"""Statuses of an approval whose comment gives the reason for the denial. An approver's comment is not such a reason."""
_MESSAGES = {
    "withdrawn": "the approval was withdrawn",
    "responded": "a reviewer responded instead of approving the call; the reason is the response",
}
"""Explanations for the statuses whose name alone is not clear to a model."""
MAX_ANSWER_CHARACTERS = 65_536
"""The maximum length of an answer as JSON. The turn's history contains the answer once."""


@dataclass(frozen=True, slots=True)
class InForce:
    """The policy and version of one tool in the published agent."""

    policy_digest: str
    tool_versions: Collection[str]
    """The tool's version by each rule; empty if the agent no longer has the tool."""


def outdated_reason(policy_digest: str, tool_version: str, in_force: InForce | None) -> str | None:
    """Returns what changed after the request was opened, or None if the request is still valid.

    `policy_digest` is empty if it was not recorded. `in_force` must be None if the agent is not published.
    """
    if in_force is None:
        return NOT_PUBLISHED
    if policy_digest and in_force.policy_digest != policy_digest:
        return "The approval policy has changed since the request"
    return TOOL_CHANGED if tool_version not in in_force.tool_versions else None


def has_call_ahead(status: str, kind: str, tool: str) -> bool:
    """Returns whether a call can still start because of such a request."""
    if status == "pending":
        return bool(decisions_that_run(kind, tool))
    return status == "edited" or (status == "approved" and kind == RequestKind.APPROVAL)


def decisions_that_run(kind: str, tool: str) -> frozenset[Decision]:
    """Returns the decisions on such a request that would run a call of `tool`. An outdated request refuses them.

    The call of a checkpoint has already run: an approval starts nothing, and an edit runs it again.
    """
    if kind == RequestKind.APPROVAL:
        return frozenset({Decision.APPROVE, Decision.EDIT})
    return frozenset({Decision.EDIT}) if kind == RequestKind.CHECKPOINT and tool else frozenset()


@dataclass(frozen=True, slots=True)
class ApprovalValidity:
    """The approval of a call, as its execution needs it."""

    approval_id: str
    status: str
    tool_version: str
    args: dict[str, JsonValue]
    intact: bool
    """True if the digest of the stored call equals the digest that was approved."""
    comment: str
    """The comment of the reviewer who decided, or of the user who withdrew."""
    edited: bool
    policy_digest: str = ""
    """The digest of the policy under which it was opened; empty if it was not recorded."""
    ready_at: datetime | None = None
    """The earliest start of its call."""
    kind: str = RequestKind.APPROVAL

    def holds(self, now: datetime) -> bool:
        """Returns whether the approval is granted but its call must still wait."""
        return self.status in GRANTED_STATUSES and self.ready_at is not None and now < self.ready_at


def denial_reason(status: str) -> str:
    """Returns why an approval with such a status denies its call."""
    return _MESSAGES.get(status, f"the approval is {status}")


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a call must not run as it is."""

    reason: str
    by_version: bool = False
    """True if only the tool's version is in the way, so that another worker may have the right one."""
    by_policy: bool = False
    """True if the approval policy has changed since, or if the agent is no longer published."""

    def outdates(self, approval: ApprovalValidity | None) -> bool:
        """Returns whether its request must be made again, instead of being denied. The call of an edited checkpoint is
        denied, because its checkpoint was passed."""
        if approval is None or approval.kind != RequestKind.APPROVAL or approval.status not in GRANTED_STATUSES:
            return False
        return self.by_version or self.by_policy


def call_refusal(
    pinned_card: ToolCard | None,
    worker_card: ToolCard | None,
    planned_version: str,
    approval: ApprovalValidity | None,
    exempt_tools: Collection[str] = (),
    args: Mapping[str, JsonValue] | None = None,
) -> Refusal | None:
    """Returns why this call cannot run, or None.

    `pinned_card` is the tool card of the call's agent, and `worker_card` is the card of this worker's tool.
    `exempt_tools` are the tools that the turn can run without the approval that their cards require. `args` are the
    planned arguments; a read that needs no approval runs in any version that accepts them.
    """
    if approval is not None and approval.status not in ALLOWING_STATUSES:
        return Refusal(denial_reason(approval.status))
    if pinned_card is None or worker_card is None:
        return Refusal("this worker does not have the tool", by_version=True)
    if not worker_card.is_version(planned_version) and not _reads_alike(pinned_card, worker_card, approval, args):
        return Refusal("the tool has changed since the call was made", by_version=True)
    if approval is None:
        needs_one = any(requires_approval(card, exempt_tools) for card in (pinned_card, worker_card))
        return Refusal("the call requires an approval and has none") if needs_one else None
    if not approval.intact or not worker_card.is_version(approval.tool_version):
        return Refusal("the approval is for a different call")
    fault = schema_fault(approval.args, worker_card.parameters)
    return Refusal(f"the approved arguments no longer match the schema: {fault}") if fault else None


def _reads_alike(
    pinned: ToolCard, worker_card: ToolCard, approval: ApprovalValidity | None, args: Mapping[str, JsonValue] | None
) -> bool:
    """Returns whether a call is a read in both versions, without an approval, whose arguments the new one accepts. A
    deploy does not break such calls of running turns."""
    if approval is not None or args is None or worker_card.needs_approval or pinned.needs_approval:
        return False
    only_reads = pinned.effect is EffectClass.READ and worker_card.effect is EffectClass.READ
    return only_reads and schema_fault(args, worker_card.parameters) is None


def lapse(approval: ApprovalValidity | None, in_force: InForce | None) -> Refusal | None:
    """Returns what changed after an approval that is still unused, or None if it is still valid.

    A call that one attempt has reserved can be finished by the next attempt.
    """
    if approval is None or approval.status not in GRANTED_STATUSES:
        return None
    reason = outdated_reason(approval.policy_digest, approval.tool_version, in_force)
    if reason is None:
        return None
    return Refusal(reason, by_version=reason == TOOL_CHANGED, by_policy=reason != TOOL_CHANGED)


@dataclass(frozen=True, slots=True)
class QuestionRecord:
    """The record of a question."""

    kind: str
    status: str
    answer_schema: Mapping[str, JsonValue]
    expires_at: datetime
    now: datetime
    over: bool = False
    """True if its turn has ended or must stop."""


def answer_refusal(question: QuestionRecord, kind: str, payload: dict[str, JsonValue]) -> CallerError | None:
    """Returns the first reason why this answer is refused, in the order of the contract, or None. The first valid
    answer counts, if it is in time and the turn continues."""
    if question.status == "answered":
        return CallerError("already_answered", "This question is already answered; the first answer counts", status=409)
    if question.status == "expired" or (question.status == "pending" and question.expires_at <= question.now):
        return CallerError("question_expired", "The question expired unanswered", status=410)
    if question.over or question.status != "pending":
        return CallerError("turn_stopped", "The turn has ended and no longer needs this answer", status=409)
    if kind != question.kind:
        return CallerError(
            "wrong_kind", f"The request is a {question.kind}, not a {kind[:40]}; send the matching `kind`", status=422
        )
    if len(canonical_json(payload)) > MAX_ANSWER_CHARACTERS:
        return CallerError("answer_too_large", f"The answer exceeds {MAX_ANSWER_CHARACTERS} characters", status=422)
    checked = check_arguments(payload, question.answer_schema)
    if checked.fault is not None:
        return CallerError("answer_invalid", checked.fault.replace("the arguments", "the answer", 1), status=422)
    fault = handed_in_fault(payload) if kind == RequestKind.CLIENT_RUN else ""
    return CallerError("answer_invalid", f"The answer is inconsistent: {fault}", status=422) if fault else None
