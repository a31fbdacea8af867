"""The chain as the database makes it: at commit, in the order of commits, without a deadlock, and for ever; and the
export of its heads: signed lines outside Postgres, only where a chain has grown, and what is cut is told."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from perdure.contracts.errors import InvariantBroken
from perdure.core.audit import ExportedHead, FaultKind
from perdure.store import audit
from perdure.store.audit import verify_chain
from perdure.store.database import Connection, Database
from perdure.worker import audit_heads as heads_module
from perdure.worker.audit_heads import HeadExport
from tests.conftest import KEYRING, Urls
from tests.doubles.spoken import Line
from tests.harness import Harness, gathered, until
from tests.integration.audit_tampering import TABLES, as_table_owner, chained_anew, new_tenant, written

RACERS, ROUNDS = 16, 12


@pytest.fixture(scope="module")
async def owner(urls: Urls) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(urls.owner, server_settings={"search_path": "perdure"})
    await connection.execute("SELECT set_config('perdure.tenant', 'local', false)")
    yield connection
    await connection.close()


async def note(tx: Connection, subject: str) -> int:
    return await audit.record(tx, "thing.done", subject, {"said": 'ü\u2028"\\/\t'}, actor=None, turn_id=None)


async def test_a_row_is_in_the_chain_once_its_transaction_has_committed(db: Database, urls: Urls) -> None:
    tenant = await new_tenant(urls.owner, "at-commit")
    async with db.transaction(tenant) as tx:
        first = await note(tx, "one")
        assert await tx.fetchval("SELECT count(*) FROM audit_chain") == 0
        second = await note(tx, "two")
    with pytest.raises(ZeroDivisionError):
        async with db.transaction(tenant) as tx:
            await note(tx, "taken back")
            raise ZeroDivisionError
    async with db.transaction(tenant) as tx:
        rows = await tx.fetch("SELECT seq, audit_id, prev, hash FROM audit_chain ORDER BY seq")
        head = await tx.fetchrow("SELECT seq, hash FROM audit_heads")
    assert [(row["seq"], row["audit_id"]) for row in rows] == [(1, first), (2, second)]
    assert rows[0]["prev"] == "0" * 64 and rows[1]["prev"] == rows[0]["hash"]
    assert head is not None and tuple(head) == (2, rows[1]["hash"])
    assert (await verify_chain(db, tenant, KEYRING)).ok


async def race(db: Database, turns: list[str]) -> list[BaseException | None]:
    """Transactions that lock a turn's row before or after they audit something, all at the same time."""
    chance = random.Random(7)

    async def one(number: int) -> None:
        for _ in range(ROUNDS):
            turn, first = chance.choice(turns), chance.random() < 0.5
            async with db.transaction("local") as tx:
                for step in ("audit", "lock") if first else ("lock", "audit"):
                    if step == "audit":
                        await note(tx, f"racer {number}")
                    else:
                        await tx.execute("SELECT FROM turns WHERE id = $1 FOR UPDATE", turn)
                    await asyncio.sleep(chance.uniform(0, 0.002))

    return await gathered(*map(one, range(RACERS)))


async def test_racing_transactions_that_lock_in_other_orders_never_wait_crosswise(harness: Harness) -> None:
    turns = [(await harness.start(Line("hi")))[0].turn_id for _ in range(2)]
    before = await harness.value("SELECT coalesce(max(seq), 0) FROM audit_chain")
    assert await race(harness.db, turns) == [None] * RACERS
    after = await harness.rows("SELECT seq FROM audit_chain WHERE seq > $1 ORDER BY seq", before)
    assert [row["seq"] for row in after] == list(range(before + 1, before + 1 + RACERS * ROUNDS))
    assert (await verify_chain(harness.db, "local", KEYRING)).ok


async def test_tenants_have_chains_of_their_own(db: Database, urls: Urls) -> None:
    tenants = [await new_tenant(urls.owner, f"own-{number}") for number in range(3)]
    await asyncio.gather(*(written(db, tenant, 30, at_once=3) for tenant in tenants))
    for tenant in tenants:
        report = await verify_chain(db, tenant, KEYRING)
        assert (report.ok, report.rows, report.head.seq) == (True, 30, 30)


async def test_nothing_is_audited_without_a_key(urls: Urls) -> None:
    keyless = await Database.connect(urls.app, most=1)
    with pytest.raises(InvariantBroken) as refused:
        async with keyless.transaction("local") as tx:
            await note(tx, "x")
    await keyless.close()
    assert refused.value.code == "audit_key_missing"


CHANGES = [
    *(f"UPDATE {table} SET tenant_id = tenant_id" for table in TABLES),
    *(f"DELETE FROM {table}" for table in TABLES),
    *(f"TRUNCATE {table} CASCADE" for table in TABLES),
    "UPDATE audit SET kind = 'x'",
    "UPDATE audit_chain SET hash = 'x'",
    "UPDATE audit_bodies SET data = '{}'",
    "UPDATE audit_bodies SET salt = 'x'",
    "UPDATE audit_bodies SET erased_by = audit_id",
]
APP_ONLY = [
    "INSERT INTO audit_chain (tenant_id, seq, audit_id, prev, hash) VALUES ('local', 99, 99, '', '')",
    "INSERT INTO audit_heads (tenant_id, seq, prev, hash) VALUES ('local', 99, '', '')",
    "UPDATE audit_heads SET seq = 0",
    "ALTER TABLE audit DISABLE TRIGGER ALL",
    "SELECT audit_link()",
]


async def test_neither_program_nor_owner_changes_the_record(
    harness: Harness, relay: Database, owner: asyncpg.Connection
) -> None:
    await written(harness.db, "local", 1)
    for statement in [*CHANGES, *APP_ONLY]:
        for database in (harness.db, relay):
            with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.RaiseError)):
                async with database.transaction("local") as tx:
                    await tx.execute(statement)
    for statement in CHANGES:
        if not statement.startswith("UPDATE audit_heads"):
            with pytest.raises(asyncpg.RaiseError):
                await owner.execute(statement)


async def test_only_the_relay_sees_the_heads_of_all_tenants(db: Database, relay: Database, urls: Urls) -> None:
    tenant = await new_tenant(urls.owner, "seen")
    await written(db, tenant, 1)
    async with db.pool.acquire() as connection:
        assert await connection.fetchval("SELECT count(*) FROM audit_heads") == 0
    seen = await relay.pool.fetch("SELECT tenant_id FROM audit_heads")
    assert tenant in {row["tenant_id"] for row in seen}
    assert await relay.pool.fetchval("SELECT count(*) FROM audit_chain") == 0


def lines(path: Path, tenant: str) -> list[dict[str, object]]:
    return [each for each in map(json.loads, path.read_text().splitlines()) if each["tenant"] == tenant]


async def test_a_line_is_written_for_each_grown_chain(
    db: Database, relay: Database, urls: Urls, tmp_path: Path
) -> None:
    one, two = await new_tenant(urls.owner, "one"), await new_tenant(urls.owner, "two")
    path = tmp_path / "outside" / "heads.jsonl"
    export = HeadExport(relay, path, KEYRING)
    await written(db, one, 3)
    assert {head.tenant for head in await export.once()} >= {one}
    assert await export.once() == []
    await written(db, two, 2)
    await written(db, one, 1)
    assert [(head.tenant, head.seq) for head in await export.once()] == [(one, 4), (two, 2)]
    assert [line["seq"] for line in lines(path, one)] == [3, 4]
    for head in audit.exported_heads(path, one):
        assert head.is_signed_by(KEYRING)
    fresh = HeadExport(relay, path, KEYRING)
    assert await fresh.once() == [], "as after a restart"
    report = await verify_chain(db, one, KEYRING, audit.exported_heads(path, one))
    assert (report.ok, report.heads_checked) == (True, 2)


async def test_a_head_that_went_back_is_not_exported(db: Database, relay: Database, urls: Urls, tmp_path: Path) -> None:
    tenant, path = await new_tenant(urls.owner, "cut-back"), tmp_path / "heads.jsonl"
    await written(db, tenant, 10)
    export = HeadExport(relay, path, KEYRING)
    await export.once()
    async with as_table_owner(urls.owner) as table_owner:
        await table_owner.execute("DELETE FROM audit_chain WHERE seq > 6 AND tenant_id = $1", tenant)
        await table_owner.execute(
            "DELETE FROM audit a WHERE tenant_id = $1 AND NOT EXISTS (SELECT FROM audit_chain WHERE audit_id = a.id)",
            tenant,
        )
        await chained_anew(table_owner, tenant)
    assert await export.once() == []
    assert [line["seq"] for line in lines(path, tenant)] == [10]
    report = await verify_chain(db, tenant, KEYRING, audit.exported_heads(path, tenant))
    assert [(fault.seq, fault.kind) for fault in report.faults] == [(10, FaultKind.TAIL_CUT)]


async def test_a_line_that_a_power_cut_left_unfinished_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "heads.jsonl"
    first = ExportedHead(tenant="a", seq=1, hash="0" * 64, at="t", key="k", hmac="h")
    second, third = first.model_copy(update={"seq": 2}), first.model_copy(update={"seq": 3})
    audit.append_heads(path, [first])
    whole, line = path.read_bytes(), second.line().encode()
    for cut in range(1, len(line) + 1, 7):
        path.write_bytes(whole + line[:cut])
        read = [first, second] if cut >= len(line) - 1 else [first]
        assert audit.exported_heads(path, "a") == read
        audit.append_heads(path, [third])
        assert audit.exported_heads(path, "a") == [*read, third]
    assert audit.newest_heads(path) == {"a": third}
    assert audit.exported_heads(tmp_path / "none", "a") == []
    with pytest.raises(OSError):
        audit.append_heads(tmp_path, [])


async def test_it_exports_at_its_start_and_at_its_end_and_waits_out_a_disk_that_fails(
    db: Database, relay: Database, urls: Urls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant, stop = await new_tenant(urls.owner, "kept"), asyncio.Event()
    monkeypatch.setattr(heads_module, "OUTAGE_SECONDS", 0.02)
    folder = tmp_path / "folder"
    folder.write_text("in the way")
    path = folder / "heads.jsonl"
    await written(db, tenant, 1)
    running = asyncio.create_task(HeadExport(relay, path, KEYRING).run(stop))
    await asyncio.sleep(0.1)
    folder.unlink()
    await until(path.exists)
    await written(db, tenant, 1)
    stop.set()
    await running
    assert [line["seq"] for line in lines(path, tenant)] == [1, 2]
