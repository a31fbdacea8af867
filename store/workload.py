"""What a tenant's turns wait for, and how its relay keeps up: counted, nobody's words among it."""

from dataclasses import dataclass

from store.approval_views import OPEN
from store.database import Connection

RELAY = "perdure-relay"
"""How the relay names itself to Postgres."""
_TURNS = """
SELECT status, count(*)::int AS count, min(created_at) AS oldest_at FROM turns WHERE ended_at IS NULL
GROUP BY status ORDER BY status
"""
_OLDEST = f"""
SELECT a.id::text, a.tool, a.agent_id AS agent, a.turn_id::text, a.requested_at, a.expires_at FROM approvals a
WHERE {OPEN} ORDER BY a.requested_at, a.id LIMIT 1
"""
# A note that was tried is due again ten seconds later, so what is overdue by more than that is looked at by nobody.
_RELAY = """
SELECT (SELECT count(*)::int FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = $1) AS sessions,
  (SELECT count(*)::int FROM outbox WHERE due_at < now() - interval '15 seconds') AS overdue
"""


@dataclass(frozen=True, slots=True)
class Workload:
    """A tenant's work at one moment."""

    turns: list[dict[str, object]]
    """The open ones by status: how many, and since when the oldest."""
    oldest_approval: dict[str, object] | None
    """Of those that wait for a decision."""
    relay_sessions: int
    overdue: int
    """Wake-ups of the tenant that the relay should have delivered."""


async def workload_of(tx: Connection) -> Workload:
    """The tenant's work as it is now."""
    turns = [dict(row) for row in await tx.fetch(_TURNS)]
    oldest = await tx.fetchrow(_OLDEST)
    ((sessions, overdue),) = await tx.fetch(_RELAY, RELAY)
    return Workload(turns, dict(oldest) if oldest else None, sessions, overdue)
