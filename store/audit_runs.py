"""Gated calls that have begun, each with the last that the audit says of its approval; policy/audit_runs.py decides."""

from policy.audit_runs import DECIDED, GIVEN, OUTCOMES, Run
from store.database import Connection

# By the ledger and by the audit: whoever removes one of the two leaves the other. Of thousands that are in order none
# is read; a body that is gone says nothing.
_RUNS = """
WITH ran AS (
  SELECT a.id::text AS approval_id FROM approvals a JOIN tool_calls k ON k.turn_id = a.turn_id AND k.call_id = a.call_id
  WHERE k.first_sent_at IS NOT NULL
  UNION SELECT subject FROM audit WHERE kind = 'call.settled'
)
SELECT r.approval_id, o.kind AS outcome, o.said, f.id AS audit_id, c.seq FROM ran r
LEFT JOIN LATERAL (
  SELECT d.kind, CASE WHEN b.data IS JSON OBJECT THEN b.data::jsonb->>'type' END AS said
  FROM audit d LEFT JOIN audit_bodies b ON b.audit_id = d.id
  WHERE d.subject = r.approval_id AND d.kind = ANY($1) ORDER BY d.id DESC LIMIT 1) o ON true
LEFT JOIN LATERAL (SELECT id FROM audit d WHERE d.subject = r.approval_id ORDER BY d.id LIMIT 1) f ON true
LEFT JOIN audit_chain c ON c.audit_id = f.id
WHERE o.kind IS DISTINCT FROM $2 OR o.said <> ALL($3) LIMIT 1000
"""


async def doubtful_runs(tx: Connection, timeout_seconds: float) -> list[Run]:
    """Those that nobody seems to have allowed; the first thousand."""
    rows = await tx.fetch(_RUNS, list(OUTCOMES), DECIDED, list(GIVEN), timeout=timeout_seconds)
    return [Run(row["approval_id"], row["outcome"], row["said"], row["seq"], row["audit_id"]) for row in rows]
