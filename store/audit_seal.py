"""The seal on rows that are older than signing: one signed row that names the chain's head at that time.

A database of a version before migration 0010 has audit rows that nobody signed. They are chained as they are found, and
sealed before the first signed row is written; no seal is made afterwards, or it would bless what somebody slipped in.
"""

from collections.abc import Mapping

from policy.audit_key import Keyring, row_text
from store.audit import append
from store.database import Connection

SEAL = "audit.sealed"
_UNSEALED = """
SELECT h.seq, h.hash FROM audit_heads h WHERE h.tenant_id = $1 AND h.seq > 0
  AND NOT EXISTS (SELECT FROM audit WHERE tenant_id = $1 AND signature <> '')
"""


async def seal(tx: Connection, tenant_id: str, keyring: Keyring) -> bool:
    """Vouch for a tenant's rows where all that there are are unsigned; whether there were any. `tx` is of this tenant,
    by whatever role."""
    head = await tx.fetchrow(_UNSEALED, tenant_id)
    if head is None:
        return False
    await append(tx, tenant_id, keyring, SEAL, f"{head['seq']}:{head['hash']}", {})
    return True


async def seals_of(tx: Connection, tenant_id: str, keyring: Keyring) -> Mapping[int, str]:
    """The hash, by place, that the tenant's seals vouch for. A seal whose signature is wrong vouches for nothing."""
    rows = await tx.fetch("SELECT subject, actor, turn_id, body_digest, signature FROM audit WHERE kind = $1", SEAL)
    sealed = {}
    for row in rows:
        text = row_text(tenant_id, SEAL, row["subject"], None, None, row["body_digest"])
        if row["actor"] is None and row["turn_id"] is None and keyring.verifies(text, row["signature"]):
            seq, _, chain_hash = row["subject"].partition(":")
            sealed[int(seq)] = chain_hash
    return sealed
