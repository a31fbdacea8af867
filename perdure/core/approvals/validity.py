"""Checks whether a planned tool call can run, and whether an answer to a question is accepted."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pydantic import JsonValue

from perdure.contracts.agents import PublishedAgent, ToolCard
from perdure.contracts.approvals import HIGH_RISK, RequestKind
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
TOOL_REMOVED = "The agent no longer has this tool"
"""The reason why a call does not run until the tool is published with its agent again."""
TOOL_CHANGED = "The tool has changed since the request"
"""The reason why a call of an earlier version does not run. Another worker may still have that version."""
SERVER_CHANGED = "The MCP server has changed the tool since the request"
"""The reason why a call does not run until it is reissued: the server lists another version than the published one."""
WORKERS_CHANGED = "The tools workers have another version of the tool than the published one"
"""The reason why a call does not run until it is reissued, for the version of the workers or for the published one."""


class DiffersAt(StrEnum):
    """The place where an approved call met another version of its tool than the published one."""

    NOWHERE = ""
    SERVER = "server"
    """The tool's MCP server."""
    WORKER = "worker"


_REASONS: Mapping[str, str] = {DiffersAt.SERVER: SERVER_CHANGED, DiffersAt.WORKER: WORKERS_CHANGED}
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
    """The policy and version of one tool in the published agent, for requests of one risk."""

    policy_digests: Collection[str]
    """The digests of requests that the policy covers."""
    tool_versions: Collection[str]
    """The tool's version by each rule; empty if the agent no longer has the tool."""

    @classmethod
    def of(cls, agent: PublishedAgent, tool: str, risk: str) -> "InForce":
        """Returns what this agent says about the tool, for a request that was opened with this risk."""
        card = agent.card(tool)
        return cls(agent.definition.approvals.digests_for(risk), card.versions if card else ())


def outdated_reason(
    policy_digest: str, tool_version: str, in_force: InForce | None, *, differs_at: str = DiffersAt.NOWHERE
) -> str | None:
    """Returns what changed after the request was opened, or None if the request is still valid.

    `policy_digest` is empty if it was not recorded. `in_force` must be None if the agent is not published.
    `differs_at` is the place where the approved call met another version (`DiffersAt`).
    """
    if in_force is None:
        return NOT_PUBLISHED
    if policy_digest and policy_digest not in in_force.policy_digests:
        return "The approval policy has changed since the request"
    if tool_version in in_force.tool_versions:
        return _REASONS.get(differs_at)
    return TOOL_CHANGED if in_force.tool_versions else TOOL_REMOVED


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
    risk: str = HIGH_RISK
    """The risk of the tool when the request was opened."""

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

    def outdates(self, approval: ApprovalValidity, effect: EffectClass) -> bool:
        """Returns whether its request must be made again, instead of being denied. The call of an edited checkpoint is
        denied, because its checkpoint was passed. A call that an attempt has reserved can be made again if that attempt
        left nothing behind."""
        leaves_nothing = effect in (EffectClass.READ, EffectClass.LOCAL)
        reopened = ALLOWING_STATUSES if leaves_nothing else GRANTED_STATUSES
        is_open = approval.kind == RequestKind.APPROVAL and approval.status in reopened
        return is_open and (self.by_version or self.by_policy)


@dataclass(frozen=True, slots=True)
class PlannedVersion:
    """The version of its tool that a call was planned for, and whether another one can run it."""

    version: str
    args: Mapping[str, JsonValue] | None = None
    """The planned arguments."""
    is_reserved: bool = False
    """True if an earlier attempt may have sent the call."""

    def runs_as(self, pinned: ToolCard, worker_card: ToolCard) -> bool:
        """Returns whether this worker's version can run a call without an approval: no version was approved, and a
        deploy does not break the calls of running turns. Both have the same effect and need no approval, the
        arguments fit, and no attempt of the other version may have sent the call."""
        if worker_card.is_version(self.version):
            return True
        if self.args is None or pinned.needs_approval or worker_card.needs_approval:
            return False
        leaves_nothing = pinned.effect in (EffectClass.READ, EffectClass.LOCAL)
        is_alike = pinned.effect is worker_card.effect and (leaves_nothing or not self.is_reserved)
        return is_alike and schema_fault(self.args, worker_card.parameters) is None


def call_refusal(
    pinned_card: ToolCard | None,
    worker_card: ToolCard | None,
    planned: PlannedVersion,
    approval: ApprovalValidity | None,
    exempt_tools: Collection[str] = (),
) -> Refusal | None:
    """Returns why this call cannot run, or None.

    `pinned_card` is the tool card of the call's agent, and `worker_card` is the card of this worker's tool.
    `exempt_tools` are the tools that the turn can run without the approval that their cards require.
    """
    if approval is not None and approval.status not in ALLOWING_STATUSES:
        return Refusal(denial_reason(approval.status))
    if pinned_card is None or worker_card is None:
        return Refusal("this worker does not have the tool", by_version=True)
    is_same = worker_card.is_version(planned.version)
    if not is_same and (approval is not None or not planned.runs_as(pinned_card, worker_card)):
        return Refusal("the tool has changed since the call was made", by_version=True)
    if approval is None:
        needs_one = any(requires_approval(card, exempt_tools) for card in (pinned_card, worker_card))
        return Refusal("the call requires an approval and has none") if needs_one else None
    if not approval.intact or not worker_card.is_version(approval.tool_version):
        return Refusal("the approval is for a different call")
    fault = schema_fault(approval.args, worker_card.parameters)
    return Refusal(f"the approved arguments no longer match the schema: {fault}") if fault else None


def lapse(approval: ApprovalValidity | None, in_force: InForce | None, worker_version: str) -> Refusal | None:
    """Returns what changed after an approval that is still unused, or None if it is still valid.

    A worker that still has the approved version, `worker_version`, can run it after another one was published. An
    approval from before rule 2 does not name the code, so it must also be the published agent's. A call that one
    attempt has reserved can be finished by the next attempt.
    """
    if approval is None or approval.status not in GRANTED_STATUSES:
        return None
    reason = outdated_reason(approval.policy_digest, approval.tool_version, in_force)
    is_approved_version = worker_version == approval.tool_version
    if reason is None or (reason == TOOL_CHANGED and is_approved_version):
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
