"""Which approvals may be given in one go: calls of low risk, all of one tool of one agent in one version.

The rest is decided one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.people import RequestKind

NOT_IN_BULK = "only calls of low risk and of one tool are approved together; edits and responses are made one by one"


@dataclass(frozen=True, slots=True)
class Asked:
    """What one approval is about."""

    kind: str
    agent_id: str
    tool: str
    tool_version: str
    risk: str


def approvable_together(asked: Sequence[Asked]) -> bool:
    """Whether these may be approved by one request."""
    # Another agent's tool of the same name may do something else.
    alike = len({(each.agent_id, each.tool, each.tool_version) for each in asked}) <= 1
    return alike and all(each.kind == RequestKind.APPROVAL and each.risk == "low" for each in asked)
