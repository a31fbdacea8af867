"""The chain as the database makes it: at commit, in the order of commits, without a deadlock, and for ever."""

import asyncio
import random
from collections.abc import AsyncIterator

import asyncpg
import pytest

from perdure.contracts.errors import InvariantBroken
from perdure.store import audit
from perdure.store.audit import verify_chain
from perdure.store.database import Connection, Database
from tests.conftest import KEYRING, Urls
from tests.desk import Desk, gathered
from tests.doubles.spoken import Line
from tests.integration.forger import new_tenant, written

RACERS, ROUNDS = 16, 12
TABLES = ("audit", "audit_bodies", "audit_chain", "audit_heads")


@pytest.fixture(scope="module")
async def owner(urls: Urls) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(urls.owner, server_settings={"search_path": "perdure"})
    await connection.execute("SELECT set_config('perdure.tenant', 'local', false)")
    yield connection
    await connection.close()


async def note(tx: Connection, subject: str) -> int:
    return await audit.record(tx, "thing.done", subject, {"said": 'ü\u2028"\\/\t'}, actor=None, turn_id=None)


async def test_a_row_is_in_the_chain_when_its_transaction_has_committed_and_not_before(
    db: Database, urls: Urls
) -> None:
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


async def race(db: Database, turns: list[str], *, at_once: bool) -> list[BaseException | None]:
    """Transactions that lock a turn's row before or after they audit something, all at the same time."""
    chance = random.Random(7)

    async def one(number: int) -> None:
        for _ in range(ROUNDS):
            turn, first = chance.choice(turns), chance.random() < 0.5
            async with db.transaction("local") as tx:
                if at_once:
                    await tx.execute("SET CONSTRAINTS ALL IMMEDIATE")
                for step in ("audit", "lock") if first else ("lock", "audit"):
                    if step == "audit":
                        await note(tx, f"racer {number}")
                    else:
                        await tx.execute("SELECT FROM turns WHERE id = $1 FOR UPDATE", turn)
                    await asyncio.sleep(chance.uniform(0, 0.002))

    return await gathered(*map(one, range(RACERS)))


async def test_sixteen_racing_transactions_that_lock_in_other_orders_never_wait_for_each_other_crosswise(
    desk: Desk,
) -> None:
    turns = [(await desk.start(Line("hi")))[0].turn_id for _ in range(2)]
    before = await desk.value("SELECT coalesce(max(seq), 0) FROM audit_chain")
    assert await race(desk.db, turns, at_once=False) == [None] * RACERS
    after = await desk.rows("SELECT seq FROM audit_chain WHERE seq > $1 ORDER BY seq", before)
    assert [row["seq"] for row in after] == list(range(before + 1, before + 1 + RACERS * ROUNDS))
    assert (await verify_chain(desk.db, "local", KEYRING)).ok


@pytest.mark.soak
async def test_the_same_race_deadlocks_where_rows_are_linked_at_once(desk: Desk) -> None:
    turns = [(await desk.start(Line("hi")))[0].turn_id for _ in range(2)]
    ended = await race(desk.db, turns, at_once=True)
    assert any(isinstance(each, asyncpg.DeadlockDetectedError) for each in ended)
    assert (await verify_chain(desk.db, "local", KEYRING)).ok, "what was rolled back leaves no gap"


async def test_tenants_have_chains_of_their_own(db: Database, urls: Urls) -> None:
    tenants = [await new_tenant(urls.owner, f"own-{number}") for number in range(3)]
    await asyncio.gather(*(written(db, tenant, 30, at_once=3) for tenant in tenants))
    for tenant in tenants:
        report = await verify_chain(db, tenant, KEYRING)
        assert (report.ok, report.rows, report.head.seq) == (True, 30, 30)


async def test_nothing_is_audited_without_a_key(urls: Urls) -> None:
    keyless = await Database.connect(urls.app, most=1)
    try:
        with pytest.raises(InvariantBroken) as refused:
            async with keyless.transaction("local") as tx:
                await note(tx, "x")
        assert refused.value.code == "audit_key_missing"
    finally:
        await keyless.close()


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


async def test_the_programs_roles_may_not_change_the_record_and_the_owner_is_refused_by_triggers(
    desk: Desk, relay: Database, owner: asyncpg.Connection
) -> None:
    await written(desk.db, "local", 1)
    for statement in [*CHANGES, *APP_ONLY]:
        for database in (desk.db, relay):
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
