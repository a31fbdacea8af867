"""Which approvals may be given in one go: calls of low risk, all of one tool of one agent in one version.

The rest is decided one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.people import RequestKind

NOT_IN_BULK = (
    "only calls of low risk and of one tool are approved together; a checkpoint, a limit, edits and responses are "
    "decided one by one"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What one approval is about."""

    kind: str
    agent_id: str
    tool: str
    tool_version: str
    risk: str


def alone(kind: str, risk: str) -> str:
    """Why an approval of this kind and risk is given by itself; empty where it may be given among others."""
    if kind == RequestKind.CHECKPOINT:
        return "a checkpoint is read and approved by itself"
    if kind != RequestKind.APPROVAL:
        return "a limit is raised by itself"
    return "" if risk == "low" else f"only calls of low risk are approved together, and this one's is {risk}"


def approvable_together(asked: Sequence[Asked]) -> bool:
    """Whether these may be approved by one request."""
    # Another agent's tool of the same name may do something else.
    alike = len({(each.agent_id, each.tool, each.tool_version) for each in asked}) <= 1
    return alike and not any(alone(each.kind, each.risk) for each in asked)
