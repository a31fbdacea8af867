"""Whether a planned tool call may run as it stands: its tool's version, its approval, the arguments approved."""

from dataclasses import dataclass

from pydantic import JsonValue

from contracts.agents import ToolCard
from policy.fitting import schema_fault

ALLOWED = frozenset({"approved", "edited", "reserved"})
"""Statuses of an approval that lets its call run; `reserved` is one that an earlier attempt of it has taken."""


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
    edited: bool


def why_void(
    card: ToolCard | None, here: ToolCard | None, planned_version: str, approval: Covering | None
) -> str | None:
    """Why this call may not run as it stands, or None where it may.

    `card` is the one that its turn pinned, `here` that of the tool which this worker would run.
    """
    if card is None or here is None:
        return "this worker has no such tool"
    if here.version != planned_version:
        return "the tool has changed since the call was made"
    if approval is None:
        return "the call needs an approval and has none" if card.needs_approval else None
    if approval.status not in ALLOWED:
        return f"the approval is {approval.status}"
    if not approval.intact or approval.tool_version != here.version:
        return "the approval is for another call than this one"
    fault = schema_fault(approval.args, here.parameters)
    return f"the approved arguments do not fit any more: {fault}" if fault else None
