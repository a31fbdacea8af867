"""What one more decision makes of a request.

One who rejects or responds decides at once; approving takes as many people as the policy says. An edit freezes the
call anew: what was approved before was another call, so those votes are void, and the editor's is the first.

Invariant: where reviewers are named, of the seats that approve at most one is not one of theirs. Whoever the request
was assigned to makes up for one of them; however often it is assigned anew, for one only.
"""

from collections.abc import Sequence

from policy.decision import STATUS_OF, Decision
from policy.votes import Vote

PENDING = "pending"


def counted(votes: Sequence[Vote]) -> tuple[Vote, ...]:
    """Those of these approvals that the quorum is counted by."""
    standing = [vote for vote in votes if vote.counts]
    extra = [vote for vote in standing if not vote.is_named][1:]
    return tuple(vote for vote in standing if vote not in extra)


def status_after(decision: Decision, quorum: int, votes: Sequence[Vote], mine: Vote, *, revised: bool) -> str:
    """The status of a request once this decision is taken too; `pending` where approvals are still missing.

    `mine` is the vote that it comes to. `revised` says that somebody has edited the call before: then it is approved as
    edited.
    """
    if decision not in (Decision.APPROVE, Decision.EDIT):
        return STATUS_OF[decision]
    before = () if decision is Decision.EDIT else votes
    if len(counted((*before, mine))) < quorum:
        return PENDING
    return STATUS_OF[Decision.EDIT if revised else decision]
