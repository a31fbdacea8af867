"""Names of erased persons: nobody takes one again, or its places in policies and lists would be inherited.

What is kept is a row of the audit whose subject is the name's HMAC: it can neither be changed nor read back.
"""

import asyncpg

from contracts.errors import CallerError
from policy.audit_key import Keyring, name_text
from store import audit
from store.database import Connection, signer_of

KIND = "user.name_retired"


async def retire(tx: Connection, name: str, actor: str) -> None:
    """Let nobody be called so any more, in the transaction that takes the name from its person."""
    tenant_id, keyring = signer_of(tx)
    await audit.record(tx, KIND, keyring.sign(name_text(tenant_id, name)), {}, actor=actor, turn_id=None)


async def refuse_erased(tx: Connection | asyncpg.Connection, tenant_id: str, keyring: Keyring, name: str) -> None:
    """Ask after the name was inserted, so that an erasure that has just ended is seen.

    Raises: CallerError 409 `name_erased`.
    """
    of_name = keyring.signatures(name_text(tenant_id, name))
    if await tx.fetchval(
        "SELECT true FROM audit WHERE tenant_id = $1 AND kind = $2 AND subject = ANY($3) LIMIT 1",
        tenant_id,
        KIND,
        of_name,
    ):
        raise CallerError(
            "name_erased",
            "a person of this name was erased, and what names the person still does; take another name",
            {"name": name},
            status=409,
        )
