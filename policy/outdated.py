"""What has changed since a request was opened, so that its call would not run however it is decided."""

from dataclasses import dataclass

from contracts.people import RequestKind
from policy.decision import Decision


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
        return "the agent is not published any more"
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
