"""Working memory: fields of a conversation that expire.

They are stored only in Postgres (ADR 9). A field expires after 24 h, or after the time that its write set. Each read or
write of a conversation restarts the time of every live field. All fields together have at most MAX_BYTES.

Locks: a writer takes the conversation's write lock before any row. Writers of one conversation are thereby serialized,
and the limit holds. A writer that also needs the turn's row locks that row first. Readers do not wait.
"""

from pydantic import JsonValue

from perdure.contracts.errors import CallerError
from perdure.store.database import Connection

TTL_SECONDS = 86_400
"""24 h."""
MAX_TTL_SECONDS = 30 * 86_400
MAX_BYTES = 65_536
"""The limit for the names and values of a conversation's live fields. Values count as Postgres writes their JSON."""
FULL = "working_memory_full"

TOUCH = """
live AS (
  SELECT field, value FROM working_memory WHERE conversation_id = $1 AND expires_at > now()
), free AS MATERIALIZED (  -- what is locked is being written, which gives it its time as well
  SELECT field FROM working_memory WHERE conversation_id = $1 AND expires_at > now() FOR UPDATE SKIP LOCKED
), touched AS (
  UPDATE working_memory w SET expires_at = now() + make_interval(secs => w.ttl_seconds)
  FROM free WHERE w.conversation_id = $1 AND w.field = free.field
)
"""
"""CTEs of a statement whose `$1` is the conversation: `live` has the fields, and the time of each is restarted."""

_MERGE = """
WITH given AS (
  SELECT key AS field, value, value = 'null'::jsonb AS gone FROM jsonb_each($3)
), others AS (
  SELECT field, octet_length(field) + octet_length(value::text) AS bytes FROM working_memory
  WHERE conversation_id = $2 AND expires_at > now() AND field NOT IN (SELECT field FROM given)
), total AS (
  SELECT coalesce(sum(bytes), 0)::bigint AS bytes FROM (
    SELECT bytes FROM others UNION ALL
    SELECT octet_length(field) + octet_length(value::text) FROM given WHERE NOT gone) each
), fits AS (
  SELECT FROM total WHERE bytes <= $5
), written AS (
  INSERT INTO working_memory (tenant_id, conversation_id, field, value, ttl_seconds, expires_at)
  SELECT $1, $2, field, value, $4::int, now() + make_interval(secs => $4::int) FROM given, fits WHERE NOT gone
  ON CONFLICT (conversation_id, field) DO UPDATE
    SET value = excluded.value, ttl_seconds = excluded.ttl_seconds, expires_at = excluded.expires_at
), touched AS (
  UPDATE working_memory w SET expires_at = now() + make_interval(secs => w.ttl_seconds)
  FROM fits, others o WHERE w.conversation_id = $2 AND w.field = o.field
), removed AS (
  DELETE FROM working_memory w USING fits WHERE w.conversation_id = $2
    AND (w.field IN (SELECT field FROM given WHERE gone)
      OR w.expires_at <= now() AND w.field NOT IN (SELECT field FROM given))
)
SELECT bytes FROM total
"""
_HOLD = "pg_advisory_xact_lock(hashtextextended('working_memory ' || $1, 0))"


async def lock_writes(tx: Connection, conversation_id: str, turn_id: str | None = None) -> None:
    """Takes the conversation's write lock until the transaction ends. If `turn_id` is given, locks the turn's row
    first.

    It is a separate statement before `merge`, because a statement that waited for a lock sees other rows as they were
    before.
    """
    if turn_id is None:
        await tx.execute(f"SELECT {_HOLD}", conversation_id)
        return
    await tx.execute(
        f"WITH turn AS MATERIALIZED (SELECT id FROM turns WHERE id = $2 FOR UPDATE) SELECT {_HOLD} FROM turn",
        conversation_id,
        turn_id,
    )


async def merge(
    tx: Connection,
    tenant_id: str,
    conversation_id: str,
    fields: dict[str, JsonValue],
    ttl_seconds: int = TTL_SECONDS,
) -> int:
    """Writes these fields. A value of None removes its field, and other fields are kept. Returns the total bytes.

    `tx` holds the write lock.

    Raises: CallerError 413 `working_memory_full`. Nothing is written then, and the transaction can continue.
    """
    total: int = await tx.fetchval(_MERGE, tenant_id, conversation_id, fields, ttl_seconds, MAX_BYTES)
    if total > MAX_BYTES:
        raise CallerError(
            FULL,
            f"The fields of a conversation can hold {MAX_BYTES} bytes; remove some first",
            {"most_bytes": MAX_BYTES, "bytes": total},
            status=413,
        )
    return total


async def read(tx: Connection, conversation_id: str) -> dict[str, JsonValue]:
    """Returns the live fields and restarts their time."""
    found = await tx.fetchval(f"WITH {TOUCH} SELECT jsonb_object_agg(field, value) FROM live", conversation_id)
    return found or {}


async def value_of(tx: Connection, conversation_id: str, field: str) -> JsonValue:
    """Returns the value of a live field without restarting its time, or None. The caller holds the write lock."""
    value: JsonValue = await tx.fetchval(
        "SELECT value FROM working_memory WHERE conversation_id = $1 AND field = $2 AND expires_at > now()",
        conversation_id,
        field,
    )
    return value


async def remove(tx: Connection, conversation_id: str, fields: list[str] | None) -> None:
    """Deletes these fields, or all of them. `tx` holds the write lock."""
    await tx.execute(
        "DELETE FROM working_memory WHERE conversation_id = $1 AND ($2::text[] IS NULL OR field = ANY($2))",
        conversation_id,
        fields,
    )


async def forget_expired(tx: Connection) -> None:
    """Deletes up to 5000 expired fields. There is no index for this."""
    await tx.execute(
        "DELETE FROM working_memory WHERE ctid = ANY(ARRAY("
        "SELECT ctid FROM working_memory WHERE expires_at <= now() LIMIT 5000 FOR UPDATE SKIP LOCKED))"
    )
