"""How many requests wait, and of which kinds: what an inbox shows beside its list."""

from collections import Counter

from policy.decision import Decider
from store.approval_views import OPEN, OPEN_TO, VOTED
from store.database import Connection
from store.narrowing import Narrowing

KINDS = ("agent", "tool", "risk", "role")
"""What they are counted by."""
_MOST_NAMES = 100
"""Of each kind, the commonest first."""


# Who may decide depends on a few columns, which very many requests have in common: it is asked once for each group.
_GROUPED = """
WITH waiting AS (
  SELECT a.agent_id, a.tool, a.risk, a.reviewer_role, a.requested_by, a.allow_self_approval, a.reviewers, a.assignee,
    {voted} AS voted, count(*) AS waiting,
    count(*) FILTER (WHERE a.expires_at < now() + make_interval(secs => {soon})) AS expiring
  FROM approvals a {only} GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9
)
SELECT a.agent_id AS agent, a.tool, a.risk, a.reviewer_role AS role, sum(a.waiting)::int AS waiting,
  sum(a.expiring)::int AS expiring, coalesce(sum(a.waiting) FILTER (WHERE NOT a.voted AND {open_to}), 0)::int AS mine
FROM waiting a GROUP BY 1, 2, 3, 4
"""


async def counts(
    tx: Connection, requester_id: str | None, decider: Decider, expiring_seconds: int
) -> dict[str, object]:
    """All that wait (with `requester_id`: that user's own), those that `decider` may decide, those that end soon."""
    only = Narrowing(OPEN)
    only.by("a.requested_by = {0}", requester_id)
    who, made_by = only.parameter(decider.user_id), only.parameter(decider.credential.created_by)
    open_to = OPEN_TO.format(who, made_by)
    soon = only.parameter(float(expiring_seconds))
    grouped = _GROUPED.format(voted=VOTED.format(who), soon=soon, only=only, open_to=open_to)
    rows = await tx.fetch(grouped, *only.given)
    sums: Counter[str] = Counter()
    by: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    for row in rows:
        for name in ("waiting", "mine", "expiring"):
            sums[name] += row[name]
        for kind in KINDS:
            by[kind][row[kind]] += row["waiting"]
    shown = {kind: dict(found.most_common(_MOST_NAMES)) for kind, found in by.items()}
    return {**{name: sums[name] for name in ("waiting", "mine", "expiring")}, "by": shown}
