"""A turn's calls in the order in which they began: of the model, of tools, and of those that put its context together.

Times, attempts, money and how each ended; no word of what was said or done.
"""

from contracts.errors import CallerError
from store.database import Connection

MOST = 500
"""Calls of a turn that are told of, the last ones."""
_THERE = "SELECT FROM turns WHERE id = $1 AND ($2::uuid IS NULL OR user_id = $2)"
_CALLS = """
SELECT * FROM (
  SELECT call_id, 'model' AS kind, model AS name, stage AS label, NULL AS effect, epoch AS attempts, errors,
    NULL::timestamptz AS planned_at, started_at, settled_at,
    CASE WHEN reply IS NULL THEN 'running' WHEN reply->>'problem' IS NOT NULL THEN 'failed' ELSE 'done' END AS state,
    coalesce(reply->'problem'->>'code', CASE WHEN reply->>'fault' <> '' THEN 'not_the_object_asked_for' END) AS code, 
    (reply->'usage'->>'cost_microusd')::bigint AS cost_microusd, NULL AS approval_id
  FROM model_calls WHERE turn_id = $1
  UNION ALL
  SELECT k.call_id, 'tool', k.tool, '', k.effect, k.epoch, k.errors, k.created_at, k.first_sent_at, k.settled_at,
    CASE WHEN k.state = 'reserved' THEN 'running' ELSE k.state END, NULL, NULL, a.id::text
  FROM tool_calls k LEFT JOIN approvals a
    ON a.turn_id = k.turn_id AND a.call_id = k.call_id AND a.tenant_id = k.tenant_id
  WHERE k.turn_id = $1
  UNION ALL
  SELECT tool, 'context', tool, '', 'read', coalesce((outcome->>'attempts')::int, failed + 1), failed, NULL,
    created_at, settled_at,
    CASE WHEN settled_at IS NULL THEN 'running' WHEN outcome->>'problem' IS NOT NULL THEN 'failed' ELSE 'done' END,
    outcome->'problem'->>'code', NULL, NULL
  FROM bundles WHERE turn_id = $1
) calls ORDER BY coalesce(started_at, planned_at) DESC, length(call_id) DESC, call_id DESC LIMIT $2
"""
_PLAIN = ("call_id", "kind", "name", "label", "effect", "state", "code", "attempts", "errors", "approval_id")
_TIMES = ("planned_at", "started_at", "settled_at")


async def calls_of(tx: Connection, turn_id: str, user_id: str | None) -> list[dict[str, object]]:
    """The calls of a turn of this user's (None: of anybody's of the tenant).

    Raises: CallerError 404 `turn_not_found`.
    """
    if await tx.fetchrow(_THERE, turn_id, user_id) is None:
        raise CallerError("turn_not_found", "there is no such turn", status=404)
    found = []
    for row in reversed(await tx.fetch(_CALLS, turn_id, MOST)):
        began, ended, cost = row["started_at"], row["settled_at"], row["cost_microusd"]
        found.append(
            {name: row[name] for name in (*_PLAIN, *_TIMES)}
            | {
                "seconds": (ended - began).total_seconds() if began and ended else None,
                "cost_usd": cost / 1e6 if cost is not None else None,
            }
        )
    return found
