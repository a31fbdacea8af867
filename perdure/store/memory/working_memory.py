"""Working memory: the scratchpad of one conversation, field by field (S0-29).

Postgres has it and nothing else does (ADR 9). A field lives 24 h or as long as its write said; each read and each write
of a conversation gives every live field its own time again. All of its fields together are at most MOST_BYTES.

Locks: who writes takes the conversation's writing lock before any row, so that writers of one conversation come one
after another and the cap holds. Who also needs the turn's row takes that one first. A reader waits for nobody.
"""

from pydantic import JsonValue

from perdure.contracts.errors import CallerError
from perdure.store.database import Connection

TTL_SECONDS = 86_400
"""24 h (E-09)."""
MOST_TTL_SECONDS = 30 * 86_400
MOST_BYTES = 65_536
"""Names and values of a conversation's live fields, values as Postgres writes their JSON."""
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
"""CTEs of a statement whose $1 is the conversation: `live` has the fields, and all of them live on."""

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


async def hold(tx: Connection, conversation_id: str, turn_id: str | None = None) -> None:
    """Take the conversation's writing lock until the transaction ends, after the row of `turn_id` where one is given.

    By itself and before `merge`: a statement that has waited for a lock sees the other rows as they were before.
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
    """Write these fields over what is there; None removes one, the others stay. Answers the bytes of all of them.

    `tx` holds the writing lock.

    Raises: CallerError 413 `working_memory_full`; then nothing is written, and the transaction may go on.
    """
    total: int = await tx.fetchval(_MERGE, tenant_id, conversation_id, fields, ttl_seconds, MOST_BYTES)
    if total > MOST_BYTES:
        raise CallerError(
            FULL,
            f"the fields of a conversation hold {MOST_BYTES} bytes at most; remove some first",
            {"most_bytes": MOST_BYTES, "bytes": total},
            status=413,
        )
    return total


async def read(tx: Connection, conversation_id: str) -> dict[str, JsonValue]:
    """The live fields, each of which lives on from now."""
    found = await tx.fetchval(f"WITH {TOUCH} SELECT jsonb_object_agg(field, value) FROM live", conversation_id)
    return found or {}


async def value_of(tx: Connection, conversation_id: str, field: str) -> JsonValue:
    """A live field as it is now, whose time runs on; None where there is none. For who holds the writing lock."""
    value: JsonValue = await tx.fetchval(
        "SELECT value FROM working_memory WHERE conversation_id = $1 AND field = $2 AND expires_at > now()",
        conversation_id,
        field,
    )
    return value


async def remove(tx: Connection, conversation_id: str, fields: list[str] | None) -> None:
    """Forget these fields, or all of them. `tx` holds the writing lock."""
    await tx.execute(
        "DELETE FROM working_memory WHERE conversation_id = $1 AND ($2::text[] IS NULL OR field = ANY($2))",
        conversation_id,
        fields,
    )


async def forget_expired(tx: Connection) -> None:
    """Remove fields that nobody sees any more, a bounded number at a time; no index is kept for it."""
    await tx.execute(
        "DELETE FROM working_memory WHERE ctid = ANY(ARRAY("
        "SELECT ctid FROM working_memory WHERE expires_at <= now() LIMIT 5000 FOR UPDATE SKIP LOCKED))"
    )
