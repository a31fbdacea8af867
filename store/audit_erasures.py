"""The rows that account for erased bodies: written before anything goes, read back only where their signature holds."""

from collections.abc import Sequence

from pydantic import JsonValue

from contracts.digests import sha256_hex
from policy.audit_erasures import BEGUN, Erasures
from policy.audit_key import Keyring, row_text
from store import audit
from store.database import Connection

MOST_NAMED = 5_000
"""By one row: 5,000 turns are 200 kB."""
_ROWS = """
SELECT a.id, a.subject, a.actor::text, a.turn_id::text, a.body_digest, a.signature, b.salt, b.data::text AS said,
  b.data::jsonb AS data
FROM audit a JOIN audit_bodies b ON b.audit_id = a.id WHERE a.kind = $1 AND b.data IS NOT NULL
"""


async def announce(tx: Connection, user_id: str, actor: str, turns: Sequence[str], rows: Sequence[int]) -> int:
    """Put on record what goes with this person: all of these turns, and these rows of others. The id to be named by
    what goes, that of the first row written."""
    ids = []
    for start in range(0, max(len(turns), len(rows), 1), MOST_NAMED):
        part = slice(start, start + MOST_NAMED)
        body: dict[str, JsonValue] = {"turns": [*turns[part]], "also": [*rows[part]]}
        ids.append(await audit.record(tx, BEGUN, user_id, body, actor=actor, turn_id=None))
    return ids[0]


async def announced(tx: Connection, user_id: str) -> list[int]:
    """The rows of others that went with this person, by an erasure that was cut off."""
    rows = await tx.fetch(
        "SELECT jsonb_array_elements(data->'also')::bigint AS id FROM audit_trail WHERE subject = $1 AND kind = $2",
        user_id,
        BEGUN,
    )
    return [row["id"] for row in rows]


async def erasures_of(tx: Connection, tenant_id: str, keyring: Keyring, seconds: float) -> Erasures:
    """What the tenant's erasures account for. A row that nobody of ours signed, or whose body is another, accounts for
    nothing."""
    found = Erasures()
    for row in await tx.fetch(_ROWS, BEGUN, timeout=seconds):
        text = row_text(tenant_id, BEGUN, row["subject"], row["actor"], row["turn_id"], row["body_digest"])
        whole = sha256_hex(row["salt"] + row["said"]) == row["body_digest"]
        if whole and keyring.verifies(text, row["signature"]):
            found.add(row["id"], row["subject"], row["data"].get("turns", ()), row["data"].get("also", ()))
    return found
