"""The audit as people read it: every row with its body, in the order of the chain."""

from collections.abc import AsyncIterator

import asyncpg

from contracts.errors import CallerError
from store.audit_links import NEXT, head_of
from store.database import Connection, Database
from store.paging import cursor_after, read_number_cursor

View = dict[str, object]
CHUNK_ROWS = 200
"""Bodies may have hundreds of kilobytes each."""
# Two near bounds and an array: whatever Postgres believes of tables that have just grown, it goes by their keys
# (measured: a chunk took the longer the more rows there were).
_EXPORT = f"""
SELECT t.*, u.name AS actor_name FROM audit_trail t LEFT JOIN users u ON u.id = t.actor
WHERE t.id = ANY(ARRAY(
  SELECT audit_id FROM audit_chain WHERE seq > $1 AND seq <= least($1 + {CHUNK_ROWS}, $2))) ORDER BY t.seq
"""
_EXPORT_OF_TURN = f"""
SELECT t.*, u.name AS actor_name FROM audit_trail t LEFT JOIN users u ON u.id = t.actor
WHERE t.turn_id = $3 AND t.seq > $1 AND t.seq <= $2 ORDER BY t.seq LIMIT {CHUNK_ROWS}
"""
# Its few rows first: in the order of the page Postgres might look through the whole audit for them.
_OF_APPROVAL = """
WITH mine AS MATERIALIZED (SELECT id FROM audit WHERE id > $3 AND subject = ANY(ARRAY(
  SELECT $1::text UNION ALL
  SELECT k.key FROM approvals a JOIN tool_calls k ON k.turn_id = a.turn_id AND k.call_id = a.call_id WHERE a.id = $2)))
SELECT t.*, u.name AS actor_name FROM audit_trail t LEFT JOIN users u ON u.id = t.actor
WHERE t.id = ANY(ARRAY(SELECT id FROM mine ORDER BY id LIMIT $4)) ORDER BY t.id
"""


async def exported(
    db: Database, tenant_id: str, after_seq: int, turn_id: str | None, most: int | None
) -> AsyncIterator[View]:
    """Every row behind `after_seq` that there is as it begins, `most` at most; of one turn where one is named. Each
    chunk is a transaction of its own, so that a slow reader holds nothing open."""
    given = 0
    async with db.transaction(tenant_id) as tx:
        end = (await head_of(tx)).seq
    while after_seq < end and (most is None or given < most):
        async with db.transaction(tenant_id) as tx:
            if turn_id is None:
                rows, following = await tx.fetch(_EXPORT, after_seq, end), after_seq + CHUNK_ROWS
                if not rows:
                    following = (await tx.fetchval(NEXT, after_seq, end) or end + 1) - 1
            else:
                rows = await tx.fetch(_EXPORT_OF_TURN, after_seq, end, turn_id)
                following = rows[-1]["seq"] if rows else end
        for row in rows[: None if most is None else most - given]:
            given += 1
            yield shown(row) | {
                "body_digest": row["body_digest"],
                "salt": row["salt"],
                "signature": row["signature"],
                "prev": row["prev"],
                "hash": row["hash"],
            }
        after_seq = following


async def of_approval(
    tx: Connection, approval_id: str, requester_id: str | None, limit: int, cursor: str | None
) -> tuple[list[View], str | None]:
    """What is on record of one approval and of the call that it covers, oldest first; with `requester_id` only that
    user's own.

    Raises: CallerError 404 `approval_not_found`, 422 `cursor_invalid`.
    """
    found = await tx.fetchval(
        "SELECT true FROM approvals WHERE id = $1 AND ($2::uuid IS NULL OR requested_by = $2)",
        approval_id,
        requester_id,
    )
    if not found:
        raise CallerError("approval_not_found", "there is no such approval", status=404)
    _, after = read_number_cursor(cursor)
    rows = await tx.fetch(_OF_APPROVAL, approval_id, approval_id, after or 0, limit + 1)
    last = rows[limit - 1] if len(rows) > limit else None
    return [shown(row) for row in rows[:limit]], cursor_after(last["at"], str(last["id"])) if last else None


def shown(row: asyncpg.Record) -> View:
    """A row as the API tells it."""
    return {
        "seq": row["seq"],
        "id": row["id"],
        "at": row["at"],
        "kind": row["kind"],
        "subject": row["subject"],
        "actor": row["actor_name"],
        "actor_id": str(row["actor"]) if row["actor"] else None,
        "turn_id": str(row["turn_id"]) if row["turn_id"] else None,
        "data": row["data"],
        "erased": row["data"] is None,
    }
