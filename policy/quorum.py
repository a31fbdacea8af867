"""What one more decision makes of a request.

One who rejects or responds decides at once; approving takes as many people as the policy says. An edit freezes the
call anew: what was approved before was another call, so those votes are void, and the editor's is the first.
"""

from collections.abc import Sequence

from policy.decision import STATUS_OF, Decision
from policy.votes import Vote

PENDING = "pending"


def status_after(decision: Decision, quorum: int, votes: Sequence[Vote], *, revised: bool) -> str:
    """The status of a request once this decision is taken too; `pending` where approvals are still missing.

    `revised` says that somebody has edited the call before: then it is approved as edited.
    """
    if decision not in (Decision.APPROVE, Decision.EDIT):
        return STATUS_OF[decision]
    before = 0 if decision is Decision.EDIT else sum(vote.counts for vote in votes)
    if before + 1 < quorum:
        return PENDING
    return STATUS_OF[Decision.EDIT if revised else decision]
