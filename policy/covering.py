"""Whether a planned tool call may run as it stands: its tool's version, its approval, the arguments approved."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from pydantic import JsonValue

from contracts.agents import ToolCard
from policy.fitting import schema_fault
from policy.outdated import InForce, why_outdated
from policy.waivers import asks_by_itself

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
