"""An empty database gets every migration, with and without alembic; one of an earlier release gets the missing ones."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from uuid import UUID

import asyncpg
import pytest
from structlog.testing import capture_logs

from perdure.contracts.errors import UpstreamUnavailable
from perdure.core.audit import FaultKind
from perdure.core.budgets import UsedStorage
from perdure.store import budgets
from perdure.store.audit import seal, verify_chain
from perdure.store.database import Database, new_id
from perdure.store.migrations import bring_up, is_newest, upgrade
from tests.conftest import KEYRING, Template, Urls, as_owner, empty_database

RELEASED = "0039"
"""The newest revision of the release before."""
WHAT = {
    "columns": "SELECT table_schema, table_name, column_name, data_type, column_default, is_nullable, is_identity "
    "FROM information_schema.columns WHERE table_schema IN ('perdure', 'public') ORDER BY 1, 2, 3",
    "constraints": "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint "
    "WHERE connamespace IN ('perdure'::regnamespace, 'public'::regnamespace) ORDER BY 1, 2",
    "indexes": "SELECT schemaname, indexname, indexdef FROM pg_indexes "
    "WHERE schemaname IN ('perdure', 'public') ORDER BY 1, 2",
    "policies": "SELECT tablename, policyname, roles::text, cmd, qual, with_check FROM pg_policies ORDER BY 1, 2",
    "functions": "SELECT proname, pg_get_functiondef(oid), proacl::text FROM pg_proc "
    "WHERE pronamespace = 'perdure'::regnamespace ORDER BY 1, 2",
    "triggers": "SELECT tgrelid::regclass::text, tgname, pg_get_triggerdef(oid) FROM pg_trigger "
    "WHERE NOT tgisinternal ORDER BY 1, 2",
    "rights": "SELECT relname, relacl::text, relrowsecurity, relforcerowsecurity FROM pg_class "
    "WHERE relnamespace IN ('perdure'::regnamespace, 'public'::regnamespace) ORDER BY 1",
    "column rights": "SELECT attrelid::regclass::text, attname, attacl::text FROM pg_attribute "
    "WHERE attacl IS NOT NULL AND attrelid > 16383 ORDER BY 1, 2",
    "version": "SELECT version_num FROM public.alembic_version",
    "search path": "SELECT setconfig::text FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase "
    "WHERE d.datname = current_database() ORDER BY 1",
}


@pytest.fixture
async def empty_urls(template: Template) -> AsyncIterator[Urls]:
    async with empty_database(template) as urls:
        yield urls


async def schema_of(url: str) -> dict[str, list[tuple[object, ...]]]:
    connection = await asyncpg.connect(url)
    found = {what: [tuple(row) for row in await connection.fetch(sql)] for what, sql in WHAT.items()}
    await connection.close()
    return found


async def test_a_first_start_and_alembic_make_the_same_schema(template: Template) -> None:
    async with AsyncExitStack() as stack:
        first, second = [(await stack.enter_async_context(empty_database(template))).owner for _ in range(2)]
        await bring_up(first)
        await asyncio.to_thread(upgrade, second)
        assert await is_newest(first) and await is_newest(second)
        ours, alembics = await schema_of(first), await schema_of(second)
    assert len(ours["columns"]) > 100, "the schema was not looked at"
    for what in WHAT:
        assert ours[what] == alembics[what], what


async def test_first_starts_leave_nothing_or_one_schema(empty_urls: Urls, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("perdure.store.migrations.NEWEST", "x" * 33)  # too long for alembic's column
        with pytest.raises(asyncpg.StringDataRightTruncationError):
            await bring_up(empty_urls.owner)
    assert not await is_newest(empty_urls.owner)
    await asyncio.gather(*(bring_up(empty_urls.owner) for _ in range(3)))
    assert await is_newest(empty_urls.owner)


async def test_the_api_of_the_release_before_finds_all_its_columns_until_it_is_replaced(empty_urls: Urls) -> None:
    columns = f"SELECT table_name, column_name, data_type, is_nullable FROM ({WHAT['columns']}) c"
    await asyncio.to_thread(upgrade, empty_urls.owner, RELEASED)
    async with as_owner(empty_urls.owner) as owner:
        before = {tuple(row) for row in await owner.fetch(columns)}
        await bring_up(empty_urls.owner)
        assert ("setup_codes", "wrong_tries", "integer", "NO") in before
        assert before <= {tuple(row) for row in await owner.fetch(columns)}


async def test_requests_go_on_while_a_long_lock_of_another_session_blocks_a_migration(
    empty_urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(upgrade, empty_urls.owner, "0041")
    for name, value in (("LOCK_SECONDS", 0.2), ("PAUSE_SECONDS", 0.3), ("MAX_TRIES", 2)):
        monkeypatch.setattr(f"perdure.store.migrations.{name}", value)
    async with as_owner(empty_urls.owner, "local") as dump, as_owner(empty_urls.app, "local") as app:
        await dump.execute("SET application_name = 'pg_dump'; BEGIN; LOCK TABLE turns IN ACCESS SHARE MODE")
        with capture_logs() as said, pytest.raises(UpstreamUnavailable) as blocked:
            await bring_up(empty_urls.owner)
        (line,) = (line for line in said if line["event"] == "migration_waits")
        holder = f"pg_dump (PID {dump.get_server_pid()}, 1 tables)"
        assert blocked.value.code == "migration_blocked"
        assert holder in line["for_locks_of"] and holder in blocked.value.details["holders"]  # type: ignore[operator]
        assert not await is_newest(empty_urls.owner)
        monkeypatch.setattr("perdure.store.migrations.MAX_TRIES", 600)
        migration = asyncio.create_task(bring_up(empty_urls.owner))
        for _ in range(20):
            async with asyncio.timeout(20):
                assert await app.fetchval("SELECT count(*) FROM turns") == 0
            await asyncio.sleep(0.05)
        assert not migration.done()
        await dump.execute("ROLLBACK")
        await migration
    assert await is_newest(empty_urls.owner)


BEGUN = (
    "INSERT INTO tenants VALUES ('local'), ('second')",
    "INSERT INTO users (id, tenant_id, name) VALUES ($1, 'local', 'ann')",
    "INSERT INTO conversations (id, tenant_id, user_id, agent_id) VALUES ($1, 'local', $1, 'desk')",
    "INSERT INTO turns (id, tenant_id, conversation_id, user_id, agent_id, agent_version, topology, status, routing, "
    "limits, message_id, through_seq) "
    "VALUES ($1, 'local', $1, $1, 'desk', 'v', 'skill_pipeline', 'awaiting_approval', '{}', '{}', $1, 0)",
    "INSERT INTO messages (id, tenant_id, conversation_id, turn_id, seq, role, content) "
    "VALUES ($1, 'local', $1, $1, 1, 'user', 'b\u00fcch')",
)
OLD_ROWS = (
    *BEGUN,
    "INSERT INTO working_memory (tenant_id, conversation_id, field, value, expires_at) "
    "VALUES ('local', $1, 'a', '1', now() + interval '1 hour')",
    "INSERT INTO model_calls (tenant_id, turn_id, call_id, epoch, run_id, attempt, model) "
    "VALUES ('local', $1, 'm1', 1, 'r', 1, 'x')",
    "INSERT INTO entities (id, tenant_id, kind, name, attributes) VALUES ($1, 'local', 'k', 'n', '{\"a\": 7}')",
    "INSERT INTO approvals (id, tenant_id, conversation_id, turn_id, call_id, agent_id, tool, tool_version, effect, "
    "risk, args, schema, digest, nonce, rule, requested_by, reviewer_role, expires_at) VALUES ($1, 'local', $1, $1, "
    "'t1.0', 'desk', 'book', 'v', 'keyed', 'low', '{}', '{}', 'd', 'n', 'r', $1, 'reviewer', now() + interval '1 day')",
)
TABLES = ("users", "conversations", "turns", "messages", "working_memory", "model_calls", "approvals", "entities")


async def insert_rows(empty_urls: Urls, statements: tuple[str, ...]) -> str:
    own_id = new_id()
    async with as_owner(empty_urls.owner, "local") as owner, owner.transaction():
        await owner.execute("SELECT set_config('perdure.reader', '*', true)")
        for statement in statements:
            await owner.execute(statement, *((own_id,) if "$1" in statement else ()))
    return own_id


async def test_every_row_survives_the_migrations_and_new_columns_get_their_old_meaning(empty_urls: Urls) -> None:
    await asyncio.to_thread(upgrade, empty_urls.owner, "0003")  # the first release
    assert not await is_newest(empty_urls.owner)
    own_id = await insert_rows(empty_urls, OLD_ROWS)
    await bring_up(empty_urls.owner)
    assert await is_newest(empty_urls.owner)
    async with as_owner(empty_urls.app, "local") as app:
        for table in TABLES:
            assert await app.fetchval(f"SELECT count(*) FROM {table}") == 1, table
        for sql, now in (
            ("SELECT kind, checkpoint, reason, result, status FROM approvals", ("approval", "", "", None, "pending")),
            ("SELECT ttl_seconds FROM working_memory", (86_400,)),
            ("SELECT held_tokens, held_cost_microusd, fallback, budget_of FROM model_calls", (0, 0, False, None)),
            ("SELECT remembers, persona FROM turns", (False, None)),
            ("SELECT rule_actions FROM tenants", ({},)),
            ("SELECT entity_id, key = sha256('a=7'::bytea) FROM entity_attributes", (UUID(own_id), True)),
        ):
            assert [tuple(row) for row in await app.fetch(sql)] == [now]
        await app.execute("SELECT set_config('perdure.tenant', 'nobody', false)")
        assert await app.fetchval("SELECT count(*) FROM entities") == 0
        await app.execute("SELECT set_config('perdure.tenant', 'local', false)")
        await app.execute(  # what the program writes since, beside what was there
            "INSERT INTO episodes (id, tenant_id, conversation_id, user_id, agent_id, summary, embedder, embedding) "
            "VALUES ($1, 'local', $1, $1, 'desk', 's', 'm', '[1,0]'::public.vector)",
            own_id,
        )


OLD_AUDIT = (
    *BEGUN[:2],
    "INSERT INTO audit (tenant_id, kind, subject, data, actor) "
    "VALUES ('local', 'user.added', 'ann', '{\"roles\": []}', $1)",
    "INSERT INTO audit (tenant_id, kind, subject, data) SELECT 'local', 'turn.stop_requested', n::text, "
    "jsonb_build_object('n', n, 'text', 'ü') FROM generate_series(1, 50) n",
    "SELECT set_config('perdure.tenant', 'second', true)",
    "INSERT INTO audit (tenant_id, kind, subject, data) VALUES ('second', 'k', 's', '{}')",
)


async def test_old_audit_rows_are_chained_sealed_and_erasable(empty_urls: Urls) -> None:
    await asyncio.to_thread(upgrade, empty_urls.owner, "0009")
    ann = await insert_rows(empty_urls, OLD_AUDIT)
    await asyncio.to_thread(upgrade, empty_urls.owner)
    async with as_owner(empty_urls.owner, "local") as owner:
        db = await Database.connect(empty_urls.app, max_connections=2, keyring=KEYRING)
        async with db.transaction("local") as tx:
            told = await tx.fetchrow("SELECT subject, data FROM audit_trail WHERE kind = 'user.added'")
            assert told is not None and tuple(told) == (ann, {"roles": [], "name": "ann"})
        unsealed = await verify_chain(db, "local", KEYRING)
        assert {fault.kind for fault in unsealed.faults} == {FaultKind.SIGNATURE_MISSING}
        assert (unsealed.faults_found, unsealed.rows) == (51, 51)
        for tenant, rows in (("local", 51), ("second", 1)):
            async with owner.transaction():
                await owner.execute("SELECT set_config('perdure.tenant', $1, true)", tenant)
                assert await seal(owner, tenant, KEYRING)
                assert not await seal(owner, tenant, KEYRING)
            report = await verify_chain(db, tenant, KEYRING)
            assert (report.ok, report.rows, report.heads_checked) == (True, rows + 1, 1)
        async with owner.transaction():
            row = "(tenant_id, kind, subject, body_digest, signature) VALUES ('local', 'k', 's', '', '')"
            await owner.execute(f"INSERT INTO audit {row}")
            assert not await seal(owner, "local", KEYRING)
        report = await verify_chain(db, "local", KEYRING)
        kinds = {(fault.seq, fault.kind) for fault in report.faults}
        assert kinds == {(53, FaultKind.SIGNATURE_MISSING), (53, FaultKind.BODY_MISSING)}
        await db.close()


OLD_BYTES = (
    *BEGUN,
    "UPDATE conversations SET title = 'ab' WHERE id = $1",
    "UPDATE turns SET system_prompt = 'abcd' WHERE id = $1",
    "INSERT INTO files (id, tenant_id, conversation_id, user_id, name, media_type, size_bytes, sha256, content) "
    "SELECT gen_random_uuid(), 'local', $1, $1, 'n', 'text/plain', n, 'd', 'x' FROM generate_series(1, 4) n",
    "WITH store AS (INSERT INTO memory_stores (tenant_id, slug, scope) VALUES ('local', 's', 'user') RETURNING id) "
    "INSERT INTO memory_documents (id, tenant_id, store_id, scope, owner_id, path, type, title, trust, version_id, "
    "sha256, words) SELECT $1, 'local', id, 'user', $1, 'p', 't', 't', 'user_authored', $1, 'd', '' FROM store",
    "INSERT INTO memory_versions (id, tenant_id, document_id, owner_id, number, sha256, content, trust, author, "
    "by_agent) VALUES ($1, 'local', $1, $1, 1, 'd', '12345', 'user_authored', $1, false)",
)


async def test_the_bytes_of_older_rows_are_counted(empty_urls: Urls) -> None:
    await asyncio.to_thread(upgrade, empty_urls.owner, "0027")
    own_id = await insert_rows(empty_urls, OLD_BYTES)
    await asyncio.to_thread(upgrade, empty_urls.owner)
    db = await Database.connect(empty_urls.app, max_connections=2, keyring=KEYRING)
    async with db.transaction("local") as tx:
        texts = 2 + 2 + 5 + 2 + 4  # title, metadata of the conversation, message, metadata and prompt of the turn
        used, count = await budgets.bytes_used(tx, own_id, own_id)
        assert (used, count) == (UsedStorage(10 + texts, 10 + 5 + texts, 10 + 5 + texts), 4)
        await tx.execute("DELETE FROM files")
        used, count = await budgets.bytes_used(tx, own_id, own_id)
        assert (used, count) == (UsedStorage(texts, 5 + texts, 5 + texts), 0)
    async with db.transaction("second") as tx:
        assert (await budgets.bytes_used(tx, own_id, own_id))[0] == UsedStorage()
    await db.close()


OLD_CREDENTIALS = (
    "INSERT INTO tenants VALUES ('local'), ('other')",
    "INSERT INTO users (id, tenant_id, name, roles) SELECT gen_random_uuid(), 'local', name, '{reviewer}' "
    "FROM unnest(ARRAY['root', 'second', 'own', 'minted', 'through', 'erased', 'invited', 'operators']) name",
    # As perdure/apps/bootstrap.py did it: without an audit row.
    "INSERT INTO api_tokens (token_sha256, tenant_id, user_id, label) "
    "SELECT 'operators', 'local', id, 'local' FROM users WHERE name = 'operators'",
    # A token whose audit row is of another time: its creator is unknown.
    "INSERT INTO api_tokens (token_sha256, tenant_id, user_id) SELECT 'erased', 'local', id FROM users "
    "WHERE name = 'erased'",
    "INSERT INTO passwords (user_id, tenant_id, hash) SELECT id, 'local', name FROM users "
    "WHERE name IN ('own', 'minted', 'invited')",
    "INSERT INTO sessions (id, tenant_id, user_id, local, expires_at) "
    "SELECT id, 'local', id, name = 'operators', now() + interval '1 day' FROM users "
    "WHERE name IN ('own', 'minted', 'invited', 'operators')",
)
MINTED = (("root", "second"), ("second", "through"), ("root", "minted"), ("root", "invited"))
"""Who created a token for whom."""
CREATORS: dict[str, dict[str, list[str]]] = {
    "api_tokens": {"operators": [], "erased": ["?"], "second": ["root"], "through": ["second", "root"],
                   "minted": ["root"]},
    "passwords": {"own": [], "minted": ["?"], "invited": []},
    "sessions": {"own": [], "minted": ["?"], "invited": [], "operators": []},
}  # fmt: skip


async def test_older_credentials_get_their_creator_from_the_audit_or_an_unknown_one(empty_urls: Urls) -> None:
    await asyncio.to_thread(upgrade, empty_urls.owner, "0028")
    async with as_owner(empty_urls.owner, "local") as owner:

        async def audited(kind: str, subject: str, actor: str, data: str = "{}") -> None:
            await owner.execute(
                "WITH row AS (INSERT INTO audit (tenant_id, kind, subject, actor, body_digest, signature) SELECT "
                "'local', $1, s.id::text, a.id, '', '' FROM users s, users a WHERE s.name = $2 AND a.name = $3 "
                "RETURNING id) INSERT INTO audit_bodies (audit_id, tenant_id, salt, data) "
                "SELECT id, 'local', 's', $4::text::json FROM row",
                kind, subject, actor, data,
            )  # fmt: skip

        async with owner.transaction():
            for statement in OLD_CREDENTIALS:
                await owner.execute(statement)
            await audited("session.begun", "invited", "invited", '{"how": "registration"}')
        for by, of in MINTED:
            async with owner.transaction():  # both rows are of one moment
                await owner.execute(
                    "INSERT INTO api_tokens (token_sha256, tenant_id, user_id, label) "
                    "SELECT $1, 'local', id, 'local' FROM users WHERE name = $1",
                    of,
                )
                await audited("user.token_minted", of, by)
    await asyncio.to_thread(upgrade, empty_urls.owner)
    async with as_owner(empty_urls.app, "local") as app:
        names = {row["id"]: row["name"] for row in await app.fetch("SELECT id, name FROM users")} | {UUID(int=0): "?"}
        for table, creators in CREATORS.items():
            for of, whose in creators.items():
                sql = f"SELECT c.created_by FROM {table} c JOIN users u ON u.id = c.user_id WHERE u.name = $1"
                assert [names[each] for each in await app.fetchval(sql, of)] == whose, (table, of)
        how = await app.fetchval("SELECT how FROM sessions s JOIN users u ON u.id = s.user_id WHERE u.name = 'invited'")
        assert how == "registration"
