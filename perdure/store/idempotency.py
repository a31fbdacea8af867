"""Idempotency keys of clients: the same key and body return the same response for 24 hours."""

from pydantic import JsonValue

from perdure.contracts.errors import CallerError
from perdure.store.database import Connection

_KEPT = "interval '24 hours'"

_CLAIM = f"""
INSERT INTO idempotency AS i (tenant_id, user_id, route, key, body_digest, status, answer)
VALUES (current_setting('perdure.tenant'), $1, $2, $3, $4, 0, 'null')
ON CONFLICT (tenant_id, user_id, route, key) DO UPDATE
  SET body_digest = excluded.body_digest, status = 0, answer = 'null', created_at = now()
  WHERE i.created_at < now() - {_KEPT}
RETURNING true
"""
_SWEEP = f"""
DELETE FROM idempotency WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM idempotency WHERE created_at < now() - {_KEPT} ORDER BY created_at LIMIT 5000
  FOR UPDATE SKIP LOCKED))
"""


async def claim(tx: Connection, user_id: str, route: str, key: str, body_digest: str) -> tuple[int, JsonValue] | None:
    """Claims `key` for this transaction and returns None, or returns the stored status and response.

    A second request with the same key waits until the first transaction has committed or rolled back.

    Raises: CallerError 422 `idempotency_key_reused` if the key was used with another body.
    """
    if await tx.fetchval(_CLAIM, user_id, route, key, body_digest):
        return None
    row = await tx.fetchrow(
        "SELECT body_digest, status, answer FROM idempotency WHERE user_id = $1 AND route = $2 AND key = $3",
        user_id,
        route,
        key,
    )
    if row is None or row["body_digest"] != body_digest:
        raise CallerError(
            "idempotency_key_reused", "This Idempotency-Key was used with a different body; use a new key", status=422
        )
    return row["status"], row["answer"]


async def is_used(tx: Connection, user_id: str, route: str, key: str) -> bool:
    """Returns whether the key has a response already. It saves work that would be discarded; `claim` decides."""
    return bool(
        await tx.fetchval(
            f"SELECT created_at > now() - {_KEPT} FROM idempotency WHERE user_id = $1 AND route = $2 AND key = $3",
            user_id,
            route,
            key,
        )
    )


async def store_response(tx: Connection, user_id: str, route: str, key: str, status: int, answer: JsonValue) -> None:
    """Stores the response for this idempotency key, in the transaction that did the work. A repeated request receives
    it."""
    await tx.execute(
        "UPDATE idempotency SET status = $4, answer = $5 WHERE user_id = $1 AND route = $2 AND key = $3",
        user_id,
        route,
        key,
        status,
        answer,
    )


async def forget_old(tx: Connection) -> None:
    """Deletes expired keys, at most 5,000 at a time."""
    await tx.execute(_SWEEP)
