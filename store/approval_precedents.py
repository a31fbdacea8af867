"""The call of a tool that was approved last before this one: what a reviewer compares it with."""

from store.database import Connection

_LAST = """
SELECT p.id, coalesce(p.decision->'args', p.args) AS args, p.decided_at, u.name AS by, p.agent_id, r.name AS requester
FROM approvals a JOIN approvals p ON p.tool = a.tool
  LEFT JOIN users u ON u.id = p.decided_by JOIN users r ON r.id = p.requested_by
WHERE a.id = $1 AND a.tool <> '' AND p.id <> a.id AND p.kind = 'approval'
  AND p.decided_at < coalesce(a.decided_at, now())
  AND p.status IN ('approved', 'edited', 'reserved', 'done', 'failed', 'outcome_unknown')
ORDER BY p.decided_at DESC LIMIT 1
"""


async def last_approved(tx: Connection, approval_id: str) -> dict[str, object] | None:
    """The arguments that were let run, by whom and when; None where there is none."""
    row = await tx.fetchrow(_LAST, approval_id)
    if row is None:
        return None
    return {
        "id": str(row["id"]),
        "args": row["args"],
        "approved_at": row["decided_at"],
        "approved_by": row["by"],
        "agent": row["agent_id"],
        "requested_by": row["requester"],
    }
