"""Audit rows: appended in the transaction of what they record; the database refuses to change them.

A row holds ids and the salted digest of its body, signed; the body lies beside it, so that it can be erased with its
person. At the commit the database links the row into its tenant's chain (migration 0010).
"""

import secrets
from uuid import UUID

from pydantic import JsonValue

from contracts.digests import canonical_json, sha256_hex
from policy.audit_key import Keyring, row_text
from store.database import Connection, signer_of

_SALT_BYTES = 16
_APPEND = """
WITH row AS (
  INSERT INTO audit (tenant_id, kind, subject, actor, turn_id, body_digest, signature)
  VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING id
), body AS (
  INSERT INTO audit_bodies (audit_id, tenant_id, salt, data) SELECT id, $1, $8, $9 FROM row
)
SELECT id FROM row
"""


async def record(
    tx: Connection, kind: str, subject: str, data: dict[str, JsonValue], *, actor: str | None, turn_id: str | None
) -> int:
    """Append one row: what happened (`kind`), to what (`subject`, an id), by whom; None is the engine itself. Its id.

    Names and words of people belong into `data`, which can be erased.

    Raises: InvariantBroken `audit_key_missing` on a connection that was opened without the deployment's keys.
    """
    tenant_id, keyring = signer_of(tx)
    return await append(tx, tenant_id, keyring, kind, subject, data, actor=actor, turn_id=turn_id)


async def append(
    tx: Connection,
    tenant_id: str,
    keyring: Keyring,
    kind: str,
    subject: str,
    data: dict[str, JsonValue],
    *,
    actor: str | None = None,
    turn_id: str | None = None,
) -> int:
    """The same for whoever brings the keys along, as the step that prepares a database does."""
    actor, turn_id = actor and str(UUID(actor)), turn_id and str(UUID(turn_id))  # as the database will write them
    salt, body = secrets.token_hex(_SALT_BYTES), canonical_json(data)
    digest = sha256_hex(salt + body)
    signature = keyring.sign(row_text(tenant_id, kind, subject, actor, turn_id, digest))
    audit_id: int = await tx.fetchval(_APPEND, tenant_id, kind, subject, actor, turn_id, digest, signature, salt, body)
    return audit_id
