"""Whether a planned tool call may run as it stands: its tool's version, its approval, the arguments approved."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from pydantic import JsonValue

from perdure.contracts.agents import ToolCard
from perdure.contracts.approvals import RequestKind
from perdure.contracts.errors import CallerError
from perdure.contracts.values import canonical_json
from perdure.core.approvals.decisions import Decision
from perdure.core.approvals.gates import asks_by_itself
from perdure.core.calls.arguments import check_arguments
from perdure.core.json_schema import schema_fault
from perdure.core.memory.files import handed_in_fault

NOT_PUBLISHED = "the agent is not published any more"
"""Why no call of it runs: a start without its app took it away, and its tools."""

# --- What has changed since a request was opened, so that its call would not run however it is decided.


@dataclass(frozen=True, slots=True)
class InForce:
    """What the agent as it is published now says about one tool."""

    policy_digest: str
    tool_version: str
    """Empty where the agent has not got the tool any more."""


def why_outdated(policy_digest: str, tool_version: str, in_force: InForce | None) -> str | None:
    """What has changed since a request with this policy and tool was opened, or None where it still counts.

    `policy_digest` is empty where nobody has kept it; `in_force` is None where the agent is not published any more.
    """
    if in_force is None:
        return NOT_PUBLISHED
    if policy_digest and in_force.policy_digest != policy_digest:
        return "who decides on such calls has changed since"
    return "the tool has changed since" if in_force.tool_version != tool_version else None


def has_call_ahead(status: str, kind: str, tool: str) -> bool:
    """Whether a call may still begin by such a request as it stands."""
    if status == "pending":
        return bool(runs_by(kind, tool))
    return status == "edited" or (status == "approved" and kind == RequestKind.APPROVAL)


def runs_by(kind: str, tool: str) -> frozenset[Decision]:
    """The decisions on such a request by which a call of `tool` would run: what an outdated one does not take.

    A checkpoint's call has run: leaving it as it is starts nothing, an edit makes it again.
    """
    if kind == RequestKind.APPROVAL:
        return frozenset({Decision.APPROVE, Decision.EDIT})
    return frozenset({Decision.EDIT}) if kind == RequestKind.CHECKPOINT and tool else frozenset()


GIVEN = frozenset({"approved", "edited"})
"""Statuses of an approval whose call has not been reserved; it may still be taken back."""
ALLOWED = GIVEN | {"reserved"}
"""Statuses of an approval that lets its call run; `reserved` is one that an earlier attempt of it has taken."""

REFUSED = frozenset({"rejected", "responded", "expired", "withdrawn"})
"""Statuses of an approval by which its call is denied, for good."""

REASONED = frozenset({"rejected", "responded", "withdrawn"})
"""Statuses of an approval whose comment says why its call does not run; whoever approved it has said no such thing."""
_TOLD = {
    "withdrawn": "the approval was withdrawn",
    "responded": "a reviewer has responded instead of letting it run; the reason is the response",
}
"""Of the statuses of which a model is not told enough by their own word."""


@dataclass(frozen=True, slots=True)
class Covering:
    """The approval of a call, as its execution must know it."""

    approval_id: str
    status: str
    tool_version: str
    args: dict[str, JsonValue]
    intact: bool
    """The digest recomputed from what is stored equals the digest that was decided on."""
    comment: str
    """Of whoever decided on it, or took it back."""
    edited: bool
    policy_digest: str = ""
    """Of the policy that it was opened under; empty where nobody has kept it."""
    ready_at: datetime | None = None
    """Its call does not start before."""

    def holds(self, now: datetime) -> bool:
        """Whether it is given, and its call is to wait all the same."""
        return self.status in GIVEN and self.ready_at is not None and now < self.ready_at


def why_not_allowed(status: str) -> str:
    """What an approval in a status that lets nothing run says to its call."""
    return _TOLD.get(status, f"the approval is {status}")


def why_void(
    card: ToolCard | None,
    here: ToolCard | None,
    planned_version: str,
    approval: Covering | None,
    waived: Collection[str] = (),
) -> str | None:
    """Why this call may not run as it stands, or None where it may.

    `card` is the one that its turn pinned, `here` that of the tool which this worker would run; `waived` are the tools
    that the turn may run without the approval that their cards ask for.
    """
    if card is None or here is None:
        return "this worker has no such tool"
    if here.version != planned_version:
        return "the tool has changed since the call was made"
    if approval is None:
        return "the call needs an approval and has none" if asks_by_itself(card, waived) else None
    if approval.status not in ALLOWED:
        return why_not_allowed(approval.status)
    if not approval.intact or approval.tool_version != here.version:
        return "the approval is for another call than this one"
    fault = schema_fault(approval.args, here.parameters)
    return f"the approved arguments do not fit any more: {fault}" if fault else None


def why_lapsed(approval: Covering | None, in_force: InForce | None) -> str | None:
    """What has changed since an approval was given that is not used yet, or None where it still counts.

    What an attempt has reserved, the next one may finish.
    """
    if approval is None or approval.status not in GIVEN:
        return None
    return why_outdated(approval.policy_digest, approval.tool_version, in_force)


# --- Whether an answer to a turn's question counts: the first that fits, in time, of a turn that goes on.

MOST_CHARACTERS = 65_536
"""Of an answer, as JSON: it rides through the turn's history once."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as its record says."""

    kind: str
    status: str
    answer_schema: Mapping[str, JsonValue]
    expires_at: datetime
    now: datetime
    over: bool = False
    """Its turn has ended, or is to stop."""


def answer_refusal(asked: Asked, kind: str, payload: dict[str, JsonValue]) -> CallerError | None:
    """Why this answer does not count, the first reason in the contract's order; None where it does."""
    if asked.status == "answered":
        return CallerError("already_answered", "it was answered before; the first answer counts", status=409)
    if asked.status == "expired" or (asked.status == "pending" and asked.expires_at <= asked.now):
        return CallerError("question_expired", "nobody answered in time", status=410)
    if asked.over or asked.status != "pending":
        return CallerError("turn_stopped", "the turn does not go on; nothing waits for this answer", status=409)
    if kind != asked.kind:
        return CallerError("wrong_kind", f"this is a {asked.kind}, not a {kind[:40]}", status=422)
    if len(canonical_json(payload)) > MOST_CHARACTERS:
        return CallerError("answer_too_large", f"an answer has {MOST_CHARACTERS} characters at most", status=422)
    checked = check_arguments(payload, asked.answer_schema)
    if checked.fault is not None:
        return CallerError("answer_invalid", checked.fault.replace("the arguments", "the answer", 1), status=422)
    fault = handed_in_fault(payload) if kind == RequestKind.CLIENT_RUN else ""
    return CallerError("answer_invalid", f"the answer does not add up: {fault}", status=422) if fault else None
