"""Reading a tenant's audit chain to be verified: a chunk of links at a time, each with its row.

What is gone from the database altogether is told by an exported head; what is there and in no link, by `strays`.
"""

from collections.abc import Iterable, Mapping

import asyncpg

from policy.audit_chain import GENESIS, ChainCheck, Entry, Head, Link, Report
from policy.audit_erasures import Erasures
from policy.audit_faults import MOST_FAULTS, Fault, FaultKind
from policy.audit_heads import ExportedHead, marks_of
from policy.audit_key import Keyring
from policy.audit_runs import undecided
from store.audit_erasures import erasures_of
from store.audit_runs import doubtful_runs
from store.audit_seal import seals_of
from store.database import Connection, Database

CHUNK_ROWS = 500
"""A chunk is hashed in about 8 ms (measured), in which the event loop waits."""
_SCAN_SECONDS = 300.0

# The digest is made where the body lies: bodies may be large, and of a chunk only the digests travel. The chunk is
# taken first, or Postgres may join whole tables for each of them (measured: 0.7 s instead of 5 ms).
_LINKS = f"""
WITH c AS MATERIALIZED (
  SELECT seq, audit_id, prev, hash FROM audit_chain WHERE seq > $1 AND seq <= least($1 + {CHUNK_ROWS}, $2)
)
SELECT c.*, a.id, a.at, a.kind, a.subject, a.actor::text, a.turn_id::text, a.body_digest, a.signature,
  pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(b.salt || b.data::text, 'UTF8')), 'hex') AS found_digest,
  b.erased_by
FROM c LEFT JOIN audit a ON a.id = c.audit_id LEFT JOIN audit_bodies b ON b.audit_id = c.audit_id ORDER BY c.seq
"""
_END = """
SELECT h.seq, h.hash, (SELECT max(seq) FROM audit_chain) AS last FROM (VALUES (1)) AS one
LEFT JOIN audit_heads h ON true
"""
NEXT = "SELECT min(seq) FROM audit_chain WHERE seq > $1 AND seq <= $2"
"""Behind a gap. A chunk is a range of places: it costs the same wherever it lies, and has no gap unless rows went."""
_UNCHAINED = """
SELECT a.id FROM audit a WHERE NOT EXISTS (SELECT FROM audit_chain c WHERE c.audit_id = a.id) LIMIT 1000
"""
_REPEATED = """
SELECT a.id, c.seq FROM (
  SELECT body_digest FROM audit GROUP BY body_digest HAVING count(*) > 1 LIMIT 1000
) r JOIN audit a USING (body_digest) LEFT JOIN audit_chain c ON c.audit_id = a.id ORDER BY a.id
"""


async def verify(
    db: Database,
    tenant_id: str,
    keyring: Keyring,
    heads: Iterable[ExportedHead] = (),
    *,
    most_faults: int = MOST_FAULTS,
) -> Report:
    """Look at every row of the tenant's audit, and at the heads that were exported.

    Each chunk is a transaction of its own: the chain only grows, so no snapshot needs to be held.
    """
    async with db.transaction(tenant_id) as tx:
        row = await tx.fetchrow(_END)
        head, end = _head(row), max(row["seq"] or 0, row["last"] or 0) if row else 0
        seals = await seals_of(tx, tenant_id, keyring)
    marks, forged = marks_of(heads, keyring, tenant_id)
    check = ChainCheck(tenant_id, keyring, _joined(marks, seals), max(seals, default=0), most_faults)
    check.note(forged)
    erasures = Erasures()
    asked: set[int | None] = {None}
    at: int | None = 0
    while at is not None:
        async with db.transaction(tenant_id) as tx:
            rows = await tx.fetch(_LINKS, at, end)
            following = None if rows else await tx.fetchval(NEXT, at, end)
            named = {row["erased_by"] for row in rows}
            if named - asked:  # also by an erasure that began just now
                erasures = await erasures_of(tx, tenant_id, keyring, _SCAN_SECONDS)
                asked |= named | erasures.known
        check.feed(_link(row, erasures) for row in rows)
        at = at + CHUNK_ROWS if rows else following and following - 1
    check.note(await _strays(db, tenant_id))
    return check.report(head)


async def head_of(tx: Connection) -> Head:
    """Where the tenant's chain ends now."""
    return _head(await tx.fetchrow("SELECT seq, hash FROM audit_heads"))


def _head(row: asyncpg.Record | None) -> Head:
    return Head(0, GENESIS) if row is None or row["seq"] is None else Head(row["seq"], row["hash"])


async def _strays(db: Database, tenant_id: str) -> list[Fault]:
    """Rows beside the chain, rows that are copies of others, calls that ran undecided; the first thousand of each."""
    async with db.transaction(tenant_id) as tx:
        unchained = await tx.fetch(_UNCHAINED, timeout=_SCAN_SECONDS)
        repeated = await tx.fetch(_REPEATED, timeout=_SCAN_SECONDS)
        runs = await doubtful_runs(tx, _SCAN_SECONDS)
    found = [Fault(0, FaultKind.ROW_UNCHAINED, row["id"]) for row in unchained]
    return found + [Fault(row["seq"] or 0, FaultKind.ROW_REPEATED, row["id"]) for row in repeated] + undecided(runs)


def _link(row: asyncpg.Record, erasures: Erasures) -> Link:
    entry, erased = None, False
    if row["id"] is not None:
        entry = Entry(
            row["at"],
            row["kind"],
            row["subject"],
            row["actor"],
            row["turn_id"],
            row["body_digest"],
            row["signature"],
        )
        erased = erasures.account_for(row["id"], entry, row["erased_by"])
    return Link(row["seq"], row["audit_id"], row["prev"], row["hash"], entry, row["found_digest"], erased)


def _joined(marks: Mapping[int, frozenset[str]], seals: Mapping[int, str]) -> Mapping[int, frozenset[str]]:
    return {**marks, **{seq: marks.get(seq, frozenset()) | {sealed} for seq, sealed in seals.items()}}
