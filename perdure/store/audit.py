"""The audit trail. Rows are appended in the transaction of the change that they record; the database rejects changes to
them.

A row contains ids and the salted digest of its body, and is signed. The body is stored separately, so that an erasure
can remove it. At the commit the database links the row into its tenant's chain (migration 0010).
"""

import os
import secrets
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from uuid import UUID

import asyncpg
from pydantic import JsonValue

from perdure.contracts.errors import CallerError
from perdure.contracts.values import canonical_json, sha256_hex
from perdure.core.audit import (
    ALLOWING_DECISIONS,
    DECISION_KIND,
    ERASURE_BEGUN,
    GENESIS,
    MAX_FAULTS,
    OUTCOME_KINDS,
    ChainCheck,
    ChainFault,
    Entry,
    Erasures,
    ExportedHead,
    FaultKind,
    Head,
    Keyring,
    Link,
    Report,
    Run,
    find_undecided,
    marks_of,
    read_head,
    row_text,
    signer_id,
)
from perdure.store.database import Connection, Database, signer_of
from perdure.store.paging import cursor_after, read_number_cursor

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
MAX_IDS_PER_ROW = 5_000
"""The maximum number of ids per row; 5,000 turn ids take 200 kB."""
LINK_CHUNK_ROWS = 500
"""Hashing a chunk takes about 8 ms (measured), during which the event loop is blocked."""
_SCAN_SECONDS = 300.0
MAX_HEADS = 100_000
"""The newest heads that are read: more than eleven years of hourly exports."""
TRAIL_CHUNK_ROWS = 200
"""Rows per chunk; a body can have hundreds of kilobytes."""


async def record(
    tx: Connection, kind: str, subject: str, data: dict[str, JsonValue], *, actor: str | None, turn_id: str | None
) -> int:
    """Appends one row and returns its id. `kind` states what happened, `subject` is the id of the object, and `actor`
    is the user; None means the engine.

    Names and texts of users belong in `data`, which can be erased.

    Raises: InvariantBroken `audit_key_missing` if the connection was opened without the deployment's keys.
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
    """Appends one row like `record`, for callers that bring the keys, such as the preparation of a database."""
    actor, turn_id = actor and str(UUID(actor)), turn_id and str(UUID(turn_id))  # the form that the database stores
    salt, body = secrets.token_hex(_SALT_BYTES), canonical_json(data)
    digest = sha256_hex(salt + body)
    signature = keyring.sign(row_text(tenant_id, kind, subject, actor, turn_id, digest))
    audit_id: int = await tx.fetchval(_APPEND, tenant_id, kind, subject, actor, turn_id, digest, signature, salt, body)
    return audit_id


SEAL = "audit.sealed"
_UNSEALED = """
SELECT h.seq, h.hash FROM audit_heads h WHERE h.tenant_id = $1 AND h.seq > 0
  AND NOT EXISTS (SELECT FROM audit WHERE tenant_id = $1 AND signature <> '')
"""


async def seal(tx: Connection, tenant_id: str, keyring: Keyring) -> bool:
    """Seals a tenant's rows if all of them are unsigned. Returns whether there were any. `tx` must be a transaction of
    this tenant; its role does not matter.

    The seal is one signed row that names the chain's head at that time. Databases from before migration 0010 contain
    unsigned audit rows. They are chained as they are found and sealed before the first signed row is written. No seal
    is made later, because it would confirm rows that someone inserted.
    """
    head = await tx.fetchrow(_UNSEALED, tenant_id)
    if head is None:
        return False
    await append(tx, tenant_id, keyring, SEAL, f"{head['seq']}:{head['hash']}", {})
    return True


_SIGNERS = """
SELECT DISTINCT a.signature FROM audit_chain c JOIN audit a ON a.id = c.audit_id
WHERE c.tenant_id = $1 AND c.seq IN (1, (SELECT seq FROM audit_heads WHERE tenant_id = $1)) AND a.signature <> ''
"""


async def signers_of(tx: Connection, tenant_id: str) -> set[str]:
    """Returns the ids of the keys that signed the tenant's first and last row. Reading all rows would delay each start
    of a large deployment. `tx` must be a transaction of this tenant."""
    return {signer_id(row["signature"]) for row in await tx.fetch(_SIGNERS, tenant_id)}


async def seals_of(tx: Connection, tenant_id: str, keyring: Keyring) -> Mapping[int, str]:
    """Returns the chain hashes that the tenant's seals confirm, by position. Seals with a wrong signature are
    ignored."""
    rows = await tx.fetch("SELECT subject, actor, turn_id, body_digest, signature FROM audit WHERE kind = $1", SEAL)
    sealed = {}
    for row in rows:
        text = row_text(tenant_id, SEAL, row["subject"], None, None, row["body_digest"])
        if row["actor"] is None and row["turn_id"] is None and keyring.verifies(text, row["signature"]):
            seq, _, chain_hash = row["subject"].partition(":")
            sealed[int(seq)] = chain_hash
    return sealed


_ROWS = """
SELECT a.id, a.subject, a.actor::text, a.turn_id::text, a.body_digest, a.signature, b.salt, b.data::text AS said,
  b.data::jsonb AS data
FROM audit a JOIN audit_bodies b ON b.audit_id = a.id WHERE a.kind = $1 AND b.data IS NOT NULL
"""


async def announce_erasure(tx: Connection, user_id: str, actor: str, turns: Sequence[str], rows: Sequence[int]) -> int:
    """Records what an erasure of this user removes: all of these turns, and these rows of other users. Returns the id
    of the first row written, which the erased rows refer to. The rows are written before the erasure, and read only if
    their signature is valid."""
    ids = []
    for start in range(0, max(len(turns), len(rows), 1), MAX_IDS_PER_ROW):
        part = slice(start, start + MAX_IDS_PER_ROW)
        body: dict[str, JsonValue] = {"turns": [*turns[part]], "also": [*rows[part]]}
        ids.append(await record(tx, ERASURE_BEGUN, user_id, body, actor=actor, turn_id=None))
    return ids[0]


async def announced_rows(tx: Connection, user_id: str) -> list[int]:
    """Returns the rows of other users that an interrupted erasure of this user announced."""
    rows = await tx.fetch(
        "SELECT jsonb_array_elements(data->'also')::bigint AS id FROM audit_trail WHERE subject = $1 AND kind = $2",
        user_id,
        ERASURE_BEGUN,
    )
    return [row["id"] for row in rows]


async def erasures_of(tx: Connection, tenant_id: str, keyring: Keyring, seconds: float) -> Erasures:
    """Returns what the tenant's erasures account for. Rows with an invalid signature or another body are ignored."""
    found = Erasures()
    for row in await tx.fetch(_ROWS, ERASURE_BEGUN, timeout=seconds):
        text = row_text(tenant_id, ERASURE_BEGUN, row["subject"], row["actor"], row["turn_id"], row["body_digest"])
        is_intact = sha256_hex(row["salt"] + row["said"]) == row["body_digest"]
        if is_intact and keyring.verifies(text, row["signature"]):
            found.add(row["id"], row["subject"], row["data"].get("turns", ()), row["data"].get("also", ()))
    return found


# Both the ledger and the audit trail are read, so that removing rows from one of them is detected. Valid runs are
# filtered out here, because there can be thousands. A run whose decision was erased is not reported.
_RUNS = """
WITH ran AS (
  SELECT a.id::text AS approval_id FROM approvals a JOIN tool_calls k ON k.turn_id = a.turn_id AND k.call_id = a.call_id
  WHERE k.first_sent_at IS NOT NULL
  UNION SELECT subject FROM audit WHERE kind = 'call.settled'
)
SELECT r.approval_id, o.kind AS outcome, o.said, f.id AS audit_id, c.seq FROM ran r
LEFT JOIN LATERAL (
  SELECT d.kind, CASE WHEN b.data IS JSON OBJECT THEN b.data::jsonb->>'type' END AS said
  FROM audit d LEFT JOIN audit_bodies b ON b.audit_id = d.id
  WHERE d.subject = r.approval_id AND d.kind = ANY($1) ORDER BY d.id DESC LIMIT 1) o ON true
LEFT JOIN LATERAL (SELECT id FROM audit d WHERE d.subject = r.approval_id ORDER BY d.id LIMIT 1) f ON true
LEFT JOIN audit_chain c ON c.audit_id = f.id
WHERE o.kind IS DISTINCT FROM $2 OR o.said <> ALL($3) LIMIT 1000
"""


async def doubtful_runs(tx: Connection, timeout_seconds: float) -> list[Run]:
    """Returns the runs without a recorded approval, at most 1,000. perdure/core/audit.py evaluates them."""
    rows = await tx.fetch(_RUNS, list(OUTCOME_KINDS), DECISION_KIND, list(ALLOWING_DECISIONS), timeout=timeout_seconds)
    return [Run(row["approval_id"], row["outcome"], row["said"], row["seq"], row["audit_id"]) for row in rows]


# The digest is computed in the database, because bodies can be large and only digests are transferred. The chunk is
# selected first, or Postgres may join whole tables for each chunk (measured: 0.7 s instead of 5 ms).
_LINKS = f"""
WITH c AS MATERIALIZED (
  SELECT seq, audit_id, prev, hash FROM audit_chain WHERE seq > $1 AND seq <= least($1 + {LINK_CHUNK_ROWS}, $2)
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
"""The next position after a gap. A chunk is a range of positions, so its cost does not depend on its position. It has
no gap unless rows were removed."""
_UNCHAINED = """
SELECT a.id FROM audit a WHERE NOT EXISTS (SELECT FROM audit_chain c WHERE c.audit_id = a.id) LIMIT 1000
"""
_REPEATED = """
SELECT a.id, c.seq FROM (
  SELECT body_digest FROM audit GROUP BY body_digest HAVING count(*) > 1 LIMIT 1000
) r JOIN audit a USING (body_digest) LEFT JOIN audit_chain c ON c.audit_id = a.id ORDER BY a.id
"""


async def verify_chain(
    db: Database,
    tenant_id: str,
    keyring: Keyring,
    heads: Iterable[ExportedHead] = (),
    *,
    most_faults: int = MAX_FAULTS,
) -> Report:
    """Verifies every audit row of the tenant, and the exported heads.

    Each chunk has a separate transaction. The chain only grows, so no snapshot is needed.

    The chain is read in chunks of links, each with its row. An exported head reveals rows that are missing from the
    database. `_find_strays` finds rows without a link.
    """
    async with db.transaction(tenant_id) as tx:
        row = await tx.fetchrow(_END)
        head, end = _read_head(row), max(row["seq"] or 0, row["last"] or 0) if row else 0
        seals = await seals_of(tx, tenant_id, keyring)
    exported = [head for head in heads if head.tenant == tenant_id]
    marks, forged = marks_of(exported, keyring, tenant_id)
    check = ChainCheck(
        tenant_id, keyring, _merge_marks(marks, seals), max(seals, default=0), most_faults, heads_found=len(exported)
    )
    check.add_faults(forged)
    erasures = Erasures()
    looked_up: set[int | None] = {None}
    at: int | None = 0
    while at is not None:
        async with db.transaction(tenant_id) as tx:
            rows = await tx.fetch(_LINKS, at, end)
            following = None if rows else await tx.fetchval(NEXT, at, end)
            named = {row["erased_by"] for row in rows}
            if named - looked_up:  # includes erasures that have just started
                erasures = await erasures_of(tx, tenant_id, keyring, _SCAN_SECONDS)
                looked_up |= named | erasures.known
        check.feed(_read_link(row, erasures) for row in rows)
        at = at + LINK_CHUNK_ROWS if rows else following and following - 1
    check.add_faults(await _find_strays(db, tenant_id))
    return check.report(head)


async def head_of(tx: Connection) -> Head:
    """Returns the current end of the tenant's chain."""
    return _read_head(await tx.fetchrow("SELECT seq, hash FROM audit_heads"))


def _read_head(row: asyncpg.Record | None) -> Head:
    return Head(0, GENESIS) if row is None or row["seq"] is None else Head(row["seq"], row["hash"])


async def _find_strays(db: Database, tenant_id: str) -> list[ChainFault]:
    """Returns rows outside the chain, duplicated rows, and calls that ran without a decision; at most 1,000 of each."""
    async with db.transaction(tenant_id) as tx:
        unchained = await tx.fetch(_UNCHAINED, timeout=_SCAN_SECONDS)
        repeated = await tx.fetch(_REPEATED, timeout=_SCAN_SECONDS)
        runs = await doubtful_runs(tx, _SCAN_SECONDS)
    found = [ChainFault(0, FaultKind.ROW_UNCHAINED, row["id"]) for row in unchained]
    return (
        found
        + [ChainFault(row["seq"] or 0, FaultKind.ROW_REPEATED, row["id"]) for row in repeated]
        + find_undecided(runs)
    )


def _read_link(row: asyncpg.Record, erasures: Erasures) -> Link:
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


def _merge_marks(marks: Mapping[int, frozenset[str]], seals: Mapping[int, str]) -> Mapping[int, frozenset[str]]:
    return {**marks, **{seq: marks.get(seq, frozenset()) | {sealed} for seq, sealed in seals.items()}}


async def all_heads(relay: Database) -> dict[str, tuple[Head, str]]:
    """Returns the chain head of every tenant and the current time. It needs the relay's role."""
    async with relay.without_tenant() as connection:
        rows = await connection.fetch(
            "SELECT tenant_id, seq, hash, to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') AS at "
            "FROM perdure.audit_heads WHERE seq > 0 ORDER BY tenant_id"
        )
    return {row["tenant_id"]: (Head(row["seq"], row["hash"]), row["at"]) for row in rows}


def append_heads(path: Path, heads: Iterable[ExportedHead]) -> None:
    """Appends these heads to the file and syncs it to disk.

    The file is outside the database, so that a truncated chain is detected. It is only appended to. A line that a power
    failure left incomplete stays in the file and is ignored.

    Raises: OSError.
    """
    text = "".join(head.line() for head in heads)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            text = "\n" + text
        os.write(descriptor, text.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def newest_heads(path: Path) -> dict[str, ExportedHead]:
    """Returns the last exported head of each tenant; empty if the file does not exist.

    Raises: OSError.
    """
    return {head.tenant: head for head in _read(path)}


def exported_heads(path: Path, tenant_id: str) -> list[ExportedHead]:
    """Returns the newest heads of a tenant in the file, signed or not; empty if the file does not exist.

    Raises: OSError.
    """
    return list(deque((head for head in _read(path) if head.tenant == tenant_id), maxlen=MAX_HEADS))


def _read(path: Path) -> Iterator[ExportedHead]:
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            head = read_head(line)
            if head is not None:
                yield head


View = dict[str, object]
# Two close bounds and an array make Postgres use the keys, even if the statistics of growing tables are outdated.
# Measured: chunks took longer the more rows there were.
_EXPORT = f"""
SELECT t.*, u.name AS actor_name, g.name AS gateway_name FROM audit_trail t LEFT JOIN users u ON u.id = t.actor
  LEFT JOIN users g ON g.id = u.gateway_id
WHERE t.id = ANY(ARRAY(
  SELECT audit_id FROM audit_chain WHERE seq > $1 AND seq <= least($1 + {TRAIL_CHUNK_ROWS}, $2))) ORDER BY t.seq
"""
_EXPORT_OF_TURN = f"""
SELECT t.*, u.name AS actor_name, g.name AS gateway_name FROM audit_trail t LEFT JOIN users u ON u.id = t.actor
  LEFT JOIN users g ON g.id = u.gateway_id
WHERE t.turn_id = $3 AND t.seq > $1 AND t.seq <= $2 ORDER BY t.seq LIMIT {TRAIL_CHUNK_ROWS}
"""
# The approval's few rows are selected first. Otherwise Postgres might scan the whole audit in the order of the page.
_OF_APPROVAL = """
WITH mine AS MATERIALIZED (SELECT id FROM audit WHERE id > $3 AND subject = ANY(ARRAY(
  SELECT $1::text UNION ALL
  SELECT k.key FROM approvals a JOIN tool_calls k ON k.turn_id = a.turn_id AND k.call_id = a.call_id WHERE a.id = $2)))
SELECT t.*, u.name AS actor_name, g.name AS gateway_name FROM audit_trail t LEFT JOIN users u ON u.id = t.actor
  LEFT JOIN users g ON g.id = u.gateway_id
WHERE t.id = ANY(ARRAY(SELECT id FROM mine ORDER BY id LIMIT $4)) ORDER BY t.id
"""


async def exported_rows(
    db: Database, tenant_id: str, after_seq: int, turn_id: str | None, limit: int | None
) -> AsyncIterator[View]:
    """Yields the rows after `after_seq` that exist at the start, at most `limit`. With `turn_id`, only rows of that
    turn. Each chunk has a separate transaction, so that a slow reader keeps none open."""
    given = 0
    async with db.transaction(tenant_id) as tx:
        end = (await head_of(tx)).seq
    while after_seq < end and (limit is None or given < limit):
        async with db.transaction(tenant_id) as tx:
            if turn_id is None:
                rows, following = await tx.fetch(_EXPORT, after_seq, end), after_seq + TRAIL_CHUNK_ROWS
                if not rows:
                    following = (await tx.fetchval(NEXT, after_seq, end) or end + 1) - 1
            else:
                rows = await tx.fetch(_EXPORT_OF_TURN, after_seq, end, turn_id)
                following = rows[-1]["seq"] if rows else end
        for row in rows[: None if limit is None else limit - given]:
            given += 1
            yield show_row(row) | {
                "body_digest": row["body_digest"],
                "salt": row["salt"],
                "signature": row["signature"],
                "prev": row["prev"],
                "hash": row["hash"],
            }
        after_seq = following


async def rows_of_approval(
    tx: Connection, approval_id: str, requester_id: str | None, limit: int, cursor: str | None
) -> tuple[list[View], str | None]:
    """Returns the audit rows of an approval and of its call, oldest first, and the cursor of the next page. With
    `requester_id`, only approvals that this user requested are found.

    Raises: CallerError 404 `approval_not_found`, 422 `cursor_invalid`.
    """
    found = await tx.fetchval(
        "SELECT true FROM approvals WHERE id = $1 AND ($2::uuid IS NULL OR requested_by = $2)",
        approval_id,
        requester_id,
    )
    if not found:
        raise CallerError("approval_not_found", "Approval not found", status=404)
    _, after = read_number_cursor(cursor)
    rows = await tx.fetch(_OF_APPROVAL, approval_id, approval_id, after or 0, limit + 1)
    last = rows[limit - 1] if len(rows) > limit else None
    return [show_row(row) for row in rows[:limit]], cursor_after(last["at"], str(last["id"])) if last else None


def show_row(row: asyncpg.Record) -> View:
    """Returns an audit row in the API's form, with the name of its actor, and of the gateway that acted for them."""
    return {
        "seq": row["seq"],
        "id": row["id"],
        "at": row["at"],
        "kind": row["kind"],
        "subject": row["subject"],
        "actor": row["actor_name"],
        "actor_id": str(row["actor"]) if row["actor"] else None,
        "gateway": row["gateway_name"],
        "turn_id": str(row["turn_id"]) if row["turn_id"] else None,
        "data": row["data"],
        "erased": row["data"] is None,
    }
