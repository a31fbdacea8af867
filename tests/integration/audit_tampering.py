"""An attacker who owns the tables, turns their triggers off and does not have the key."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from perdure.contracts.values import sha256_hex
from perdure.core.audit import GENESIS, Entry, ExportedHead, link_hash, signed_head
from perdure.store import audit
from perdure.store.audit import head_of
from perdure.store.database import Database
from tests.conftest import KEYRING, as_owner

TABLES = ("audit", "audit_bodies", "audit_chain", "audit_heads")
AT = "2026-01-01T00:00:00Z"


@asynccontextmanager
async def as_table_owner(owner_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection that may do everything to the audit's tables; afterwards they are guarded again."""
    async with as_owner(owner_url) as connection:
        for table in TABLES:
            await connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER, NO FORCE ROW LEVEL SECURITY")
        await connection.execute("ALTER TABLE audit_bodies DROP CONSTRAINT IF EXISTS audit_bodies_audit_id_fkey")
        yield connection
        for table in TABLES:
            await connection.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER, FORCE ROW LEVEL SECURITY")


async def new_tenant(owner_url: str, name: str) -> str:
    async with as_owner(owner_url) as owner:
        await owner.execute("INSERT INTO tenants (tenant_id) VALUES ($1)", name)
    return name


async def write_audit_rows(db: Database, tenant_id: str, rows: int, *, at_once: int = 500) -> None:
    for start in range(0, rows, at_once):
        async with db.transaction(tenant_id) as tx:
            for number in range(start, min(start + at_once, rows)):
                actor, turn = (f"{number:032x}", f"{number + 1:032x}") if number % 3 else (None, None)
                await audit.record(tx, "thing.done", f"subject-{number}", {"n": number}, actor=actor, turn_id=turn)


async def exported_head(db: Database, tenant_id: str) -> ExportedHead:
    async with db.transaction(tenant_id) as tx:
        head = await head_of(tx)
    return signed_head(KEYRING, tenant_id, head.seq, head.hash, AT)


async def chained_anew(table_owner: asyncpg.Connection, tenant_id: str) -> None:
    """Writes the tenant's whole chain over the existing rows as the program would have, but without the key."""
    rows = await table_owner.fetch(
        "SELECT a.*, b.salt || b.data::text AS said FROM audit_chain c JOIN audit a ON a.id = c.audit_id "
        "JOIN audit_bodies b ON b.audit_id = a.id WHERE a.tenant_id = $1 ORDER BY c.seq",
        tenant_id,
    )
    await table_owner.execute("DELETE FROM audit_chain WHERE tenant_id = $1", tenant_id)
    prev, before, links, digests = GENESIS, "", [], []
    for seq, row in enumerate(rows, 1):
        digest = sha256_hex(row["said"])
        actor, turn = (str(row[name]) if row[name] else None for name in ("actor", "turn_id"))
        entry = Entry(row["at"], row["kind"], row["subject"], actor, turn, digest, row["signature"])
        before, prev = prev, link_hash(seq, prev, entry)
        links.append((tenant_id, seq, row["id"], before, prev))
        digests.append((digest, row["id"]))
    await table_owner.executemany("UPDATE audit SET body_digest = $1 WHERE id = $2 AND body_digest <> $1", digests)
    await table_owner.executemany("INSERT INTO audit_chain VALUES ($1, $2, $3, $4, $5)", links)
    await table_owner.execute(
        "UPDATE audit_heads SET seq = $2, prev = $3, hash = $4 WHERE tenant_id = $1", tenant_id, len(rows), before, prev
    )
