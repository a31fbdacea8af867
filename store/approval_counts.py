"""How many requests wait, and of which kinds: what an inbox shows beside its list."""

from collections import Counter

from store.approval_views import MINE, OPEN
from store.database import Connection
from store.narrowing import Narrowing

KINDS = ("agent", "tool", "risk", "role")
"""What they are counted by."""
_MOST_NAMES = 100
"""Of each kind, the commonest first."""


async def counts(tx: Connection, requester_id: str | None, decider_id: str, expiring_seconds: int) -> dict[str, object]:
    """All that wait (with `requester_id`: that user's own), those that `decider_id` may decide, those that end soon."""
    only = Narrowing(OPEN)
    only.by("a.requested_by = {0}", requester_id)
    mine, soon = MINE.format(only.parameter(decider_id)), only.parameter(float(expiring_seconds))
    rows = await tx.fetch(
        "SELECT a.agent_id AS agent, a.tool, a.risk, a.reviewer_role AS role, count(*) AS waiting, "
        f"count(*) FILTER (WHERE {mine}) AS mine, "
        f"count(*) FILTER (WHERE a.expires_at < now() + make_interval(secs => {soon})) AS expiring "
        f"FROM approvals a {only} GROUP BY 1, 2, 3, 4",
        *only.given,
    )
    sums: Counter[str] = Counter()
    by: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    for row in rows:
        for name in ("waiting", "mine", "expiring"):
            sums[name] += row[name]
        for kind in KINDS:
            by[kind][row[kind]] += row["waiting"]
    shown = {kind: dict(found.most_common(_MOST_NAMES)) for kind, found in by.items()}
    return {**{name: sums[name] for name in ("waiting", "mine", "expiring")}, "by": shown}
