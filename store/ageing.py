"""How long what waits for people has waited: by role, assignee and agent."""

from store.approval_views import OPEN
from store.database import Connection

_BUCKETS = (
    ("1h", "0", "1 hour"),
    ("1d", "1 hour", "1 day"),
    ("3d", "1 day", "3 days"),
    ("older", "3 days", "1000 years"),
)
_COUNTS = ", ".join(
    f"'{name}', count(*) FILTER (WHERE age >= interval '{least}' AND age < interval '{most}')"
    for name, least, most in _BUCKETS
)
_AGEING = f"""
WITH waiting AS (
  SELECT a.reviewer_role, s.name AS assignee, a.agent_id, a.fallback_reviewer, a.fallback_at, a.fell_back_at,
    a.requested_at, a.expires_at, greatest(now() - a.requested_at, interval '0') AS age
  FROM approvals a LEFT JOIN users s ON s.id = a.assignee
  WHERE {OPEN} AND ($1::uuid IS NULL OR a.requested_by = $1)
)
SELECT reviewer_role AS role, assignee, agent_id AS agent, count(*) AS waiting, min(requested_at) AS oldest_at,
  min(expires_at) AS next_expiry_at, fallback_reviewer, jsonb_build_object({_COUNTS}) AS buckets,
  min(fallback_at) FILTER (WHERE fell_back_at IS NULL) AS fallback_at
FROM waiting GROUP BY reviewer_role, assignee, agent_id, fallback_reviewer
ORDER BY min(requested_at), agent_id LIMIT 500
"""


async def ageing(tx: Connection, requester_id: str | None) -> list[dict[str, object]]:
    """Groups of requests that wait, the oldest first; with `requester_id` only that user's own."""
    return [
        {
            **{name: row[name] for name in ("role", "assignee", "agent", "waiting", "oldest_at", "next_expiry_at")},
            "fallback": {"reviewer": row["fallback_reviewer"], "at": row["fallback_at"]}
            if row["fallback_reviewer"]
            else None,
            "buckets": row["buckets"],
        }
        for row in await tx.fetch(_AGEING, requester_id)
    ]
