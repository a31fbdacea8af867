"""Row-level security on the real database: what a role sees without a tenant, of another tenant, and of none."""

import asyncio
import random
from collections.abc import AsyncIterator

import asyncpg
import pytest

from perdure.contracts.errors import InvariantBroken
from perdure.store.database import Database, new_id
from tests.conftest import Person, Urls, as_owner
from tests.doubles.message_script import Line
from tests.harness import Harness, gathered
from tests.integration.test_erasure import plant
from tests.scale import sized

DENIED = asyncpg.InsufficientPrivilegeError
OTHER = "other"


@pytest.fixture(scope="module")
async def db_owner(urls: Urls) -> AsyncIterator[asyncpg.Connection]:
    async with as_owner(urls.owner) as connection:
        yield connection


BESIDE_A_TURN = (
    "WITH made AS (INSERT INTO entities (id, tenant_id, kind, name, attributes) "
    "SELECT id, 'local', 'k', 'n', '{\"a\": 1}' FROM turns WHERE id = $1 RETURNING id) "
    "INSERT INTO entity_names (tenant_id, name_key, entity_id) SELECT 'local', 'n', id FROM made",
    "INSERT INTO injection_ledger (tenant_id, conversation_id, skill_id, turn_id, tier) "
    "SELECT 'local', conversation_id, 's', id, 2 FROM turns WHERE id = $1",
    "INSERT INTO day_limits (tenant_id, set_by) SELECT 'local', user_id FROM turns WHERE id = $1",
    "INSERT INTO day_usage (tenant_id, day, agent_id) SELECT 'local', created_at::date, agent_id FROM turns "
    "WHERE id = $1",
    "INSERT INTO approval_votes (tenant_id, approval_id, user_id, seat_id, role, decision, digest, record) "
    "SELECT 'local', a.id, a.requested_by, a.requested_by, 'reviewer', 'approve', 'd', '{}' FROM approvals a "
    "WHERE a.turn_id = $1",
    "INSERT INTO delegations (id, tenant_id, user_id, to_user, until) SELECT t.id, 'local', t.user_id, u.id, now() "
    "FROM turns t, users u WHERE t.id = $1 AND u.name = 'admin'",
    "WITH store AS (INSERT INTO memory_stores (tenant_id, slug, scope) VALUES ('local', 's', 'workspace') "
    "RETURNING id), document AS (INSERT INTO memory_documents (id, tenant_id, store_id, scope, path, type, title, "
    "trust, version_id, sha256, words) SELECT t.id, 'local', store.id, 'workspace', 'p', 'runbook', 't', "
    "'admin_approved', t.id, 'd', '' FROM turns t, store WHERE t.id = $1 RETURNING id, store_id), version AS ("
    "INSERT INTO memory_versions (id, tenant_id, document_id, number, sha256, content, trust, author, by_agent) "
    "SELECT id, 'local', id, 1, 'd', 'c', 'admin_approved', id, false FROM document), promotion AS ("
    "INSERT INTO memory_promotions (id, tenant_id, source_document, source_version, store_id, path, type, title, "
    "content, sha256, risk, proposed_by, by_agent) SELECT d.id, 'local', d.id, d.id, store_id, 'p', 'runbook', 't', "
    "'c', 'd', 'low', t.user_id, false FROM document d JOIN turns t ON t.id = d.id) "
    "INSERT INTO conversation_memory_usage (tenant_id, conversation_id, turn_id, kind, version_id) "
    "SELECT 'local', t.conversation_id, t.id, 'read', t.id FROM turns t JOIN document d ON d.id = t.id",
    "INSERT INTO passwords (user_id, tenant_id, hash) SELECT user_id, 'local', 'h' FROM turns WHERE id = $1",
    "WITH session AS (INSERT INTO sessions (id, tenant_id, user_id, expires_at) "
    "SELECT id, 'local', user_id, now() FROM turns WHERE id = $1 RETURNING id) "
    "INSERT INTO refresh_tokens (token_sha256, tenant_id, session_id, expires_at) "
    "SELECT 'h', 'local', id, now() FROM session",
    "INSERT INTO invitations (token_sha256, tenant_id, user_id, expires_at) "
    "SELECT 'h', 'local', user_id, now() FROM turns WHERE id = $1",
    "INSERT INTO sign_in_codes (code_sha256, tenant_id, user_id, expires_at) "
    "SELECT 'h', 'local', user_id, now() FROM turns WHERE id = $1",
    "WITH webhook AS (INSERT INTO webhooks (id, tenant_id, url, with_args, key_id, made_by) "
    "SELECT id, 'local', 'u', false, 'k', user_id FROM turns WHERE id = $1 RETURNING id) "
    "INSERT INTO notices (tenant_id, webhook_id, approval_id, event) SELECT 'local', id, id, 'e' FROM webhook",
    "INSERT INTO write_probes (tenant_id) SELECT 'local' FROM turns WHERE id = $1",
    "INSERT INTO identities (tenant_id, issuer, subject, user_id) "
    "SELECT 'local', 'i', 's', user_id FROM turns WHERE id = $1",
    "INSERT INTO setup_code_tries (tenant_id, address, wrong_tries, last_at) "
    "SELECT c.tenant_id, 'a', 1, now() FROM setup_codes c, turns t WHERE t.id = $1",
)
"""A row of the first tenant in each table that the turns and other rows of this file leave empty."""
PUBLISHED = (
    "INSERT INTO agent_versions (tenant_id, agent_id, version, body) "
    "SELECT 'local', 'ours', version, body FROM agent_versions WHERE agent_id = 'desk' LIMIT 1",
    "INSERT INTO agents (tenant_id, agent_id, version) SELECT tenant_id, agent_id, version FROM agent_versions "
    "WHERE tenant_id = 'local'",
    "INSERT INTO app_tables (tenant_id, digest, name, body) VALUES ('local', 'd', 'n', '{}')",
)
"""The same, if the owner writes."""


@pytest.fixture(scope="module")
async def tables(db_owner: asyncpg.Connection, harness: Harness) -> list[str]:
    """Every table with at least one row of the first tenant, and another tenant without rows."""
    await db_owner.execute("INSERT INTO tenants (tenant_id) VALUES ($1)", OTHER)
    address = await harness.plan(("pay", {}), ("jot", {"text": "x"}))
    await harness.open(address, "t1.0")
    await harness.run_tool(address, "t1.1")
    planted, _ = await harness.start(Line("hi"))
    await plant(harness, planted)
    for statement in BESIDE_A_TURN:
        await harness.write(statement, address.turn_id)
    async with db_owner.transaction():
        await db_owner.execute("SELECT set_config('perdure.tenant', 'local', true)")
        for statement in PUBLISHED:
            await db_owner.execute(statement)
    found = await db_owner.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'perdure' ORDER BY 1")
    names = [row["tablename"] for row in found]
    assert [name for name, rows in (await ours(harness, names)).items() if not rows] == []
    return names


async def ours(harness: Harness, tables: list[str]) -> dict[str, int]:
    return {name: await harness.value(f"SELECT count(*) FROM {name} WHERE tenant_id = 'local'") for name in tables}


async def test_every_table_has_a_tenant_and_forced_row_security(
    db_owner: asyncpg.Connection, tables: list[str]
) -> None:
    assert len(tables) >= 18
    guarded = await db_owner.fetch(
        "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'perdure' "
        "AND c.relrowsecurity AND c.relforcerowsecurity AND EXISTS (SELECT FROM pg_attribute a "
        "WHERE a.attrelid = c.oid AND a.attname = 'tenant_id' AND a.attnotnull)"
    )
    assert set(tables) - {row["relname"] for row in guarded} == set()


async def test_without_a_tenant_every_table_shows_no_rows(harness: Harness, tables: list[str]) -> None:
    async with harness.db.pool.acquire() as connection:
        for table in tables:
            assert await connection.fetchval(f"SELECT count(*) FROM perdure.{table}") == 0, table


async def test_another_tenant_neither_sees_nor_changes_a_row(harness: Harness, tables: list[str]) -> None:
    before = await ours(harness, tables)
    async with harness.db.transaction(OTHER) as tx:
        for table in tables:
            seen = await tx.fetch(f"SELECT DISTINCT tenant_id FROM {table}")
            assert {row["tenant_id"] for row in seen} <= {OTHER, "*"}, table
    audits = {"audit", "audit_bodies", "audit_chain", "audit_heads"}
    kept = {*audits, "agents", "agent_versions", "app_tables", "tenants", "user_facts"}
    writable = [table for table in tables if table not in kept]
    for table in writable:
        async with harness.db.transaction(OTHER) as tx:
            assert await tx.execute(f"UPDATE {table} SET tenant_id = tenant_id") == "UPDATE 0", table
            assert await tx.execute(f"DELETE FROM {table}") == "DELETE 0", table
    assert await ours(harness, tables) == before


async def test_no_user_writes_a_row_for_another_tenant(harness: Harness) -> None:
    address, _ = await harness.start(Line("hi"))
    person = harness.people["requester"]
    conversation_id, turn_id = address.conversation_id, address.turn_id
    for row in (
        f"conversations (id, tenant_id, user_id, agent_id) VALUES ('{new_id()}', 'local', '{person.user_id}', 'desk')",
        f"outbox (tenant_id, kind, turn_id) VALUES ('local', 'ring', '{turn_id}')",
        "audit (tenant_id, kind, subject, body_digest, signature) VALUES ('local', 'forged', 'x', '', '')",
        "events (tenant_id, conversation_id, seq, turn_id, kind, data, at) "
        f"VALUES ('local', '{conversation_id}', 99, '{turn_id}', 'forged', '{{}}', now())",
    ):
        with pytest.raises(DENIED):
            async with harness.db.transaction(OTHER) as tx:
                await tx.execute(f"INSERT INTO {row}")
    with pytest.raises(DENIED):
        await harness.write("UPDATE conversations SET tenant_id = $1", OTHER)


@pytest.mark.parametrize("statement", [
    *(f"DELETE FROM {table}" for table in ("agents", "agent_versions", "app_tables", "tenants", "audit")),
    *(f"INSERT INTO agents (tenant_id, agent_id, version) VALUES ('{of}', 'x', 'y')" for of in ("local", "*")),
    "UPDATE agents SET version = version",
    "UPDATE agent_versions SET body = '{}'",
    "INSERT INTO app_tables (tenant_id, digest, name, body) VALUES ('local', 'd', 'n', '{}')",
    "UPDATE app_tables SET body = '{}'",
    "INSERT INTO tenants (tenant_id) VALUES ('mine')",
    "UPDATE audit SET kind = 'x'",
    "TRUNCATE audit",
    "DROP TABLE outbox",
    "ALTER TABLE turns DISABLE ROW LEVEL SECURITY",
    "CREATE TABLE perdure.extra (id int)",
    "SET ROLE perdure_owner",
])  # fmt: skip
async def test_the_programs_role_cannot_change_published_or_audited_rows(harness: Harness, statement: str) -> None:
    for tenant in ("local", "*"):
        with pytest.raises(DENIED):
            async with harness.db.transaction(tenant) as tx:
                await tx.execute(statement)


async def test_a_role_that_bypasses_row_security_is_refused(urls: Urls) -> None:
    database = urls.owner.rpartition("/")[2]
    with pytest.raises(InvariantBroken) as refused:
        await Database.connect(urls.admin.rpartition("/")[0] + "/" + database)
    assert refused.value.code == "role_too_strong"


@pytest.mark.parametrize("tenant", ["", "Local", "a b", "x'; SET ROLE perdure_owner; --", "-x", "a" * 64, "local\n"])
async def test_an_invalid_tenant_name_is_refused(harness: Harness, tenant: str) -> None:
    with pytest.raises(InvariantBroken) as refused:
        async with harness.db.transaction(tenant):
            raise AssertionError("a transaction began")
    assert refused.value.code == "bad_tenant"


async def test_the_relay_sees_wake_ups_of_all_tenants_and_nothing_else_of_them(urls: Urls, harness: Harness) -> None:
    await harness.start(Line("hi"))
    relay = await Database.connect(urls.relay, max_connections=2)
    try:
        async with relay.pool.acquire() as connection:
            assert await connection.fetchval("SELECT count(*) FROM perdure.outbox") > 0
            for table in ("turns", "messages", "approvals", "tool_calls", "users", "audit_chain"):
                assert await connection.fetchval(f"SELECT count(*) FROM perdure.{table}") == 0, table
            with pytest.raises(DENIED):
                await connection.fetchval("SELECT count(*) FROM perdure.api_tokens")
            with pytest.raises(DENIED):
                await connection.fetchval("SELECT * FROM perdure.principal_of('x')")
    finally:
        await relay.close()


@pytest.mark.sized
async def test_transactions_of_two_tenants_never_mix_even_when_they_are_cancelled(urls: Urls, harness: Harness) -> None:
    shared = await Database.connect(urls.app, max_connections=3)
    chance = random.Random(3)
    seen: list[tuple[str, str | None]] = []

    async def look(tenant: str) -> None:
        async with shared.transaction(tenant) as tx:
            await asyncio.sleep(chance.uniform(0, 0.004))
            seen.append((tenant, await tx.fetchval("SELECT current_setting('perdure.tenant', true)")))

    async def cut_short(tenant: str) -> None:
        task = asyncio.create_task(look(tenant))
        await asyncio.sleep(chance.uniform(0, 0.004))
        task.cancel()
        await gathered(task)

    try:
        works = ((look if n % 3 else cut_short)(chance.choice(["local", OTHER])) for n in range(sized(300, 90)))
        await asyncio.gather(*works)
        async with shared.pool.acquire() as connection:
            assert await connection.fetchval("SELECT current_setting('perdure.tenant', true)") in ("", None)
        assert len(seen) >= sized(200, 60)
        assert all(tenant == found for tenant, found in seen)
    finally:
        await shared.close()


async def test_temporary_tables_do_not_change_a_callers_tenant(harness: Harness, people: dict[str, Person]) -> None:
    """The look-up of a token's owner runs with its owner's rights."""
    async with harness.db.transaction("local") as tx:
        await tx.execute("CREATE TEMP TABLE users (LIKE users INCLUDING DEFAULTS) ON COMMIT DROP")
        await tx.execute("CREATE TEMP TABLE api_tokens (LIKE api_tokens INCLUDING DEFAULTS) ON COMMIT DROP")
        await tx.execute("GRANT SELECT ON pg_temp.users, pg_temp.api_tokens TO PUBLIC")
        for insert in (
            "users (id, tenant_id, name, display_name, roles) VALUES ($1, 'local', 'x', 'x', '{admin}')",
            "api_tokens (token_sha256, tenant_id, user_id) VALUES ('forged', 'local', $1)",
        ):
            await tx.execute(f"INSERT INTO pg_temp.{insert}", people["admin"].user_id)
        assert await tx.fetch("SELECT * FROM principal_of('forged')") == []
