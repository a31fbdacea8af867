"""A database of the first release, with a turn that waits for a person, is brought to the newest version as it is."""

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import asyncpg
import pytest

from perdure.core.audit import FaultKind
from perdure.core.budgets import Used
from perdure.store import budgets
from perdure.store.audit import seal, verify_chain
from perdure.store.database import Database, new_id, set_up
from perdure.store.migrations import is_newest, provision, upgrade
from tests.conftest import KEYRING, Template

FIRST = "0003"
"""The version of the first release; what came after it had to be brought to data."""
OLD_ROWS = (
    "INSERT INTO tenants VALUES ('local')",
    "INSERT INTO users (id, tenant_id, name) VALUES ($1, 'local', 'a')",
    "INSERT INTO conversations (id, tenant_id, user_id, agent_id) VALUES ($1, 'local', $1, 'desk')",
    "INSERT INTO turns (id, tenant_id, conversation_id, user_id, agent_id, agent_version, topology, status, routing, "
    "limits, message_id, through_seq) "
    "VALUES ($1, 'local', $1, $1, 'desk', 'v', 'skill_pipeline', 'awaiting_approval', '{}', '{}', $1, 0)",
    "INSERT INTO messages (id, tenant_id, conversation_id, turn_id, seq, role, content) "
    "VALUES ($1, 'local', $1, $1, 1, 'user', 'book it')",
    "INSERT INTO working_memory (tenant_id, conversation_id, field, value, expires_at) "
    "VALUES ('local', $1, 'a', '1', now() + interval '1 hour')",
    "INSERT INTO model_calls (tenant_id, turn_id, call_id, epoch, run_id, attempt, model) "
    "VALUES ('local', $1, 'm1', 1, 'r', 1, 'x')",
    "INSERT INTO entities (id, tenant_id, kind, name, attributes) VALUES ($1, 'local', 'k', 'n', '{\"a\": 7}')",
    "INSERT INTO approvals (id, tenant_id, conversation_id, turn_id, call_id, agent_id, tool, tool_version, effect, "
    "risk, args, schema, digest, nonce, rule, requested_by, reviewer_role, expires_at) VALUES ($1, 'local', $1, $1, "
    "'t1.0', 'desk', 'book', 'v', 'keyed', 'low', '{}', '{}', 'd', 'n', 'r', $1, 'reviewer', now() + interval '1 day')",
)
TABLES = (
    "tenants",
    "users",
    "conversations",
    "turns",
    "messages",
    "working_memory",
    "model_calls",
    "approvals",
    "entities",
)


@pytest.fixture
async def empty(template: Template) -> AsyncIterator[dict[str, str]]:
    """A database of its own without any table: its URLs by role."""
    name = "t_old_" + new_id()[-12:]
    given = template.urls
    urls = {
        role: urlunsplit(urlsplit(url)._replace(path=f"/{name}"))
        for role, url in {"owner": given.owner, "app": given.app, "relay": given.relay}.items()
    }
    await provision(given.admin, owner_url=urls["owner"], app_url=urls["app"], relay_url=urls["relay"])
    yield urls
    admin = await asyncpg.connect(given.admin)
    await admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    await admin.close()


async def row(connection: asyncpg.Connection, sql: str) -> tuple[object, ...]:
    (found,) = await connection.fetch(sql)
    return tuple(found)


async def connected(url: str) -> asyncpg.Connection:
    connection = await asyncpg.connect(url, server_settings={"search_path": "perdure"})
    await set_up(connection)
    await connection.execute("SELECT set_config('perdure.tenant', 'local', false)")
    return connection


async def test_every_row_is_there_afterwards_and_new_columns_say_what_held_before(empty: dict[str, str]) -> None:
    await asyncio.to_thread(upgrade, empty["owner"], FIRST)
    assert not await is_newest(empty["owner"])
    owner, own_id = await connected(empty["owner"]), new_id()
    async with owner.transaction():
        for statement in OLD_ROWS:
            await owner.execute(statement, *((own_id,) if "$1" in statement else ()))
    await owner.close()
    await asyncio.to_thread(upgrade, empty["owner"])
    assert await is_newest(empty["owner"])
    app = await connected(empty["app"])
    try:
        for table in TABLES:
            assert await app.fetchval(f"SELECT count(*) FROM {table}") == 1, table
        approval = await row(app, "SELECT kind, checkpoint, reason, result, status FROM approvals")
        assert approval == ("approval", "", "", None, "pending")
        assert await app.fetchval("SELECT ttl_seconds FROM working_memory") == 86_400
        held = await row(app, "SELECT held_tokens, held_cost_microusd, fallback, budget_of FROM model_calls")
        assert held == (0, 0, False, None)
        assert await row(app, "SELECT remembers, persona FROM turns") == (False, None)
        assert await app.fetchval("SELECT rule_actions FROM tenants") == {}
        found = await row(app, "SELECT entity_id, key = sha256('a=7'::bytea) FROM entity_attributes")
        assert found == (UUID(own_id), True), "it is found by what it had"
        await app.execute("SELECT set_config('perdure.tenant', 'nobody', false)")
        assert await app.fetchval("SELECT count(*) FROM entities") == 0
        await app.execute("SELECT set_config('perdure.tenant', 'local', false)")
        await app.execute(  # what the program writes since, beside what was there
            "INSERT INTO episodes (id, tenant_id, conversation_id, user_id, agent_id, summary, embedder, embedding) "
            "VALUES ($1, 'local', $1, $1, 'desk', 's', 'm', '[1,0]'::public.vector)",
            own_id,
        )
    finally:
        await app.close()


OLD_AUDIT = (
    "INSERT INTO tenants VALUES ('local'), ('second')",
    "INSERT INTO users (id, tenant_id, name) VALUES ($1, 'local', 'ann')",
    "INSERT INTO audit (tenant_id, kind, subject, data, actor) "
    "VALUES ('local', 'user.added', 'ann', '{\"roles\": []}', $1)",
    "INSERT INTO audit (tenant_id, kind, subject, data) SELECT 'local', 'turn.stop_requested', n::text, "
    "jsonb_build_object('n', n, 'text', 'ü') FROM generate_series(1, 50) n",
)


async def test_audit_rows_of_before_are_chained_sealed_and_erasable_and_none_is_slipped_in_later(
    empty: dict[str, str],
) -> None:
    await asyncio.to_thread(upgrade, empty["owner"], "0009")
    owner, ann = await connected(empty["owner"]), new_id()
    async with owner.transaction():
        for statement in OLD_AUDIT:
            await owner.execute(statement, *((ann,) if "$1" in statement else ()))
        await owner.execute("SELECT set_config('perdure.tenant', 'second', true)")
        await owner.execute("INSERT INTO audit (tenant_id, kind, subject, data) VALUES ('second', 'k', 's', '{}')")
    await asyncio.to_thread(upgrade, empty["owner"])
    db = await Database.connect(empty["app"], most=2, keyring=KEYRING)
    try:
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
            await owner.execute(
                "INSERT INTO audit (tenant_id, kind, subject, body_digest, signature) "
                "VALUES ('local', 'k', 's', '', '')"
            )
            assert not await seal(owner, "local", KEYRING)
        report = await verify_chain(db, "local", KEYRING)
        kinds = {(fault.seq, fault.kind) for fault in report.faults}
        assert kinds == {(53, FaultKind.SIGNATURE_MISSING), (53, FaultKind.BODY_MISSING)}
    finally:
        await db.close()
        await owner.close()


OLD_BYTES = (
    "INSERT INTO tenants VALUES ('local'), ('second')",
    "INSERT INTO users (id, tenant_id, name) VALUES ($1, 'local', 'ann')",
    "INSERT INTO conversations (id, tenant_id, user_id, agent_id, title) VALUES ($1, 'local', $1, 'desk', 'ab')",
    "INSERT INTO turns (id, tenant_id, conversation_id, user_id, agent_id, agent_version, topology, status, routing, "
    "limits, message_id, through_seq, system_prompt) "
    "VALUES ($1, 'local', $1, $1, 'desk', 'v', 'tool_loop', 'completed', '{}', '{}', $1, 0, 'abcd')",
    "INSERT INTO messages (id, tenant_id, conversation_id, turn_id, seq, role, content) "
    "VALUES ($1, 'local', $1, $1, 1, 'user', 'b\u00fcch')",
    "INSERT INTO files (id, tenant_id, conversation_id, user_id, name, media_type, size_bytes, sha256, content) "
    "SELECT gen_random_uuid(), 'local', $1, $1, 'n', 'text/plain', n, 'd', 'x' FROM generate_series(1, 4) n",
    "WITH store AS (INSERT INTO memory_stores (tenant_id, slug, scope) VALUES ('local', 's', 'user') RETURNING id) "
    "INSERT INTO memory_documents (id, tenant_id, store_id, scope, owner_id, path, type, title, trust, version_id, "
    "sha256, words) SELECT $1, 'local', id, 'user', $1, 'p', 't', 't', 'user_authored', $1, 'd', '' FROM store",
    "INSERT INTO memory_versions (id, tenant_id, document_id, owner_id, number, sha256, content, trust, author, "
    "by_agent) VALUES ($1, 'local', $1, $1, 1, 'd', '12345', 'user_authored', $1, false)",
)


async def test_bytes_of_before_are_counted(empty: dict[str, str]) -> None:
    await asyncio.to_thread(upgrade, empty["owner"], "0027")
    owner, own_id = await connected(empty["owner"]), new_id()
    async with owner.transaction():
        await owner.execute("SELECT set_config('perdure.reader', '*', true)")
        for statement in OLD_BYTES:
            await owner.execute(statement, *((own_id,) if "$1" in statement else ()))
    await owner.close()
    await asyncio.to_thread(upgrade, empty["owner"])
    db = await Database.connect(empty["app"], most=2, keyring=KEYRING)
    try:
        async with db.transaction("local") as tx:
            texts = 2 + 2 + 5 + 2 + 4  # title, metadata of the conversation, message, metadata and prompt of the turn
            used, count = await budgets.bytes_used(tx, own_id, own_id)
            assert (used, count) == (Used(10 + texts, 10 + 5 + texts, 10 + 5 + texts), 4)
            await tx.execute("DELETE FROM files")
            used, count = await budgets.bytes_used(tx, own_id, own_id)
            assert (used, count) == (Used(texts, 5 + texts, 5 + texts), 0)
        async with db.transaction("second") as tx:
            assert (await budgets.bytes_used(tx, own_id, own_id))[0] == Used()
    finally:
        await db.close()


OLD_CREDENTIALS = (
    "INSERT INTO users (id, tenant_id, name, roles) SELECT gen_random_uuid(), 'local', name, '{reviewer}' "
    "FROM unnest(ARRAY['root', 'second', 'own', 'minted', 'through', 'erased', 'invited', 'operators']) name",
    # As perdure/apps/bootstrap.py did it: without an audit row.
    "INSERT INTO api_tokens (token_sha256, tenant_id, user_id, label) "
    "SELECT 'operators', 'local', id, 'local' FROM users WHERE name = 'operators'",
    # A token whose audit row is of another time: nobody knows who created it.
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


async def test_credentials_of_before_have_the_creators_that_the_audit_names_and_others_an_unknown_one(
    empty: dict[str, str],
) -> None:
    await asyncio.to_thread(upgrade, empty["owner"], "0028")
    owner = await connected(empty["owner"])
    await owner.execute("INSERT INTO tenants VALUES ('local'), ('other')")

    async def audited(kind: str, subject: str, actor: str, data: str = "{}") -> None:
        await owner.execute(
            "WITH row AS (INSERT INTO audit (tenant_id, kind, subject, actor, body_digest, signature) SELECT 'local', "
            "$1, s.id::text, a.id, '', '' FROM users s, users a WHERE s.name = $2 AND a.name = $3 RETURNING id) "
            "INSERT INTO audit_bodies (audit_id, tenant_id, salt, data) "
            "SELECT id, 'local', 's', $4::text::json FROM row",
            kind, subject, actor, data,
        )  # fmt: skip

    async with owner.transaction():
        for statement in OLD_CREDENTIALS:
            await owner.execute(statement)
        await audited("session.begun", "invited", "invited", '{"how": "registration"}')
    for by, of in MINTED:
        async with owner.transaction():
            await owner.execute(
                "INSERT INTO api_tokens (token_sha256, tenant_id, user_id, label) "
                "SELECT $1, 'local', id, 'local' FROM users WHERE name = $1",
                of,
            )
            await audited("user.token_minted", of, by)
    await asyncio.to_thread(upgrade, empty["owner"])
    app = await connected(empty["app"])
    names = {row["id"]: row["name"] for row in await app.fetch("SELECT id, name FROM users")} | {UUID(int=0): "?"}

    async def creators(table: str, of: str) -> list[str]:
        found = await app.fetchval(
            f"SELECT c.created_by FROM {table} c JOIN users u ON u.id = c.user_id WHERE u.name = $1", of
        )
        return [names[each] for each in found]

    try:
        tokens = {of: await creators("api_tokens", of) for of in ("operators", "erased", *(of for _, of in MINTED))}
        assert tokens == {
            "operators": [],
            "erased": ["?"],
            "second": ["root"],
            "through": ["second", "root"],
            "minted": ["root"],
            "invited": ["root"],
        }
        assert {of: await creators("passwords", of) for of in ("own", "minted", "invited")} == {
            "own": [],
            "minted": ["?"],
            "invited": [],
        }
        assert {of: await creators("sessions", of) for of in ("own", "minted", "invited", "operators")} == {
            "own": [],
            "minted": ["?"],
            "invited": [],
            "operators": [],
        }
        how = await app.fetchval("SELECT how FROM sessions s JOIN users u ON u.id = s.user_id WHERE u.name = 'invited'")
        assert how == "registration"
    finally:
        await app.close()
        await owner.close()
