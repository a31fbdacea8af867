"""Notices on their way to webhooks: claimed by the relay, read as things are when they are sent."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import asyncpg
from pydantic import JsonValue

from policy.webhooks import says_args
from store.approval_views import STATUS_NOW
from store.database import Connection

TAKEN_SECONDS = 60
"""A relay that is killed while it sends leaves its notices to be sent again after this."""
_CLAIM = f"""
UPDATE notices SET due_at = now() + interval '{TAKEN_SECONDS} seconds', attempts = attempts + 1 WHERE id IN (
  SELECT id FROM notices WHERE due_at <= now() AND gave_up_at IS NULL ORDER BY due_at, at LIMIT $1
  FOR UPDATE SKIP LOCKED)
RETURNING id, tenant_id, webhook_id, approval_id, event, at, attempts
"""
_ABOUT = f"""
SELECT w.url, w.with_args, w.key_id, a.id, a.kind, a.tool, a.agent_id, a.risk, a.digest, a.args, a.revision,
  a.reviewer_role, a.requested_at, a.expires_at, a.decided_at, a.version, {STATUS_NOW} AS status_now,
  a.decision->>'type' AS decision, r.name AS requester, d.name AS decider, s.name AS assigned
FROM webhooks w, approvals a JOIN users r ON r.id = a.requested_by LEFT JOIN users d ON d.id = a.decided_by
  LEFT JOIN users s ON s.id = a.assignee
WHERE w.id = $1 AND w.ended_at IS NULL AND a.id = $2
"""


@dataclass(frozen=True, slots=True)
class Notice:
    """One that is due."""

    id: str
    tenant_id: str
    webhook_id: str
    approval_id: str
    event: str
    at: datetime
    attempts: int
    """This one included."""


@dataclass(frozen=True, slots=True)
class Letter:
    """Where a notice goes, and what it says."""

    url: str
    key_id: str
    approval: dict[str, JsonValue]


async def claim_due(relay_pool: asyncpg.Pool, most: int = 20) -> list[Notice]:
    """Take due notices of all tenants for a minute; only the relay's role sees them. Safe to run twice."""
    return [
        Notice(str(r["id"]), r["tenant_id"], str(r["webhook_id"]), str(r["approval_id"]), *tuple(r)[4:])
        for r in await relay_pool.fetch(_CLAIM, most)
    ]


async def letter(tx: Connection, notice: Notice) -> Letter | None:
    """What it says, as things are now; None where nobody is told any more."""
    row = await tx.fetchrow(_ABOUT, notice.webhook_id, notice.approval_id)
    if row is None:
        return None
    approval: dict[str, JsonValue] = {
        "id": str(row["id"]),
        "status": row["status_now"],
        "version": row["version"],
        "kind": row["kind"],
        "tool": row["tool"],
        "agent": row["agent_id"],
        "risk": row["risk"],
        "requested_by": row["requester"],
        "requested_at": row["requested_at"].isoformat(),
        "expires_at": row["expires_at"].isoformat(),
        "reviewer_role": row["reviewer_role"],
        "assignee": row["assigned"],
        "decision": row["decision"],
        "decided_by": row["decider"],
        "decided_at": row["decided_at"].isoformat() if row["decided_at"] else None,
    }
    if says_args(row["risk"], with_args=row["with_args"]):
        frozen = row["revision"] if row["revision"] and row["status_now"] == "pending" else row
        approval |= {"args": frozen["args"], "digest": frozen["digest"]}
    return Letter(row["url"], row["key_id"], approval)


async def delivered(relay_pool: asyncpg.Pool, notice: Notice) -> None:
    """Forget one that got through, or that nobody waits for."""
    await relay_pool.execute("DELETE FROM notices WHERE id = $1", notice.id)


async def failed(relay_pool: asyncpg.Pool, notice: Notice, problem: str, wait: timedelta | None) -> None:
    """Try it again after `wait`; None: give it up."""
    await relay_pool.execute(
        "UPDATE notices SET problem = $2, due_at = now() + coalesce($3::interval, '0'), "
        "gave_up_at = CASE WHEN $3::interval IS NULL THEN now() END WHERE id = $1",
        notice.id,
        problem,
        wait,
    )
