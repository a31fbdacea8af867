"""Plans that were made for an empty tenant read only the needed rows of a large one."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from perdure.apps.bootstrap import LOCAL_TENANT
from perdure.store import budgets, status
from perdure.store.database import Connection, Database
from perdure.store.turns import conversations, reconcile, start, views
from perdure.store.turns.finish import _NEXT_NOW
from tests.conftest import KEYRING, Urls, as_owner

TURNS_OF_CONVERSATION = 20
CONVERSATIONS = """
INSERT INTO perdure.conversations (id, tenant_id, user_id, agent_id)
SELECT gen_random_uuid(), $1, id, 'refunds' FROM perdure.users, generate_series(1, $2::int)
WHERE name IN ('requester', 'reviewer')
"""
TURNS = f"""
INSERT INTO perdure.turns (id, tenant_id, conversation_id, user_id, agent_id, agent_version, topology, status, routing,
  limits, message_id, through_seq, created_at, ended_at)
SELECT gen_random_uuid(), tenant_id, id, user_id, 'refunds', 'v', 'tool_loop', 'completed', '{{}}', '{{}}',
  gen_random_uuid(), 0, date_trunc('day', now(), 'UTC') - days * interval '1 day', now()
FROM perdure.conversations, generate_series({TURNS_OF_CONVERSATION - 1}, 0, -1) days ORDER BY days DESC;
INSERT INTO perdure.model_calls (tenant_id, turn_id, call_id, epoch, run_id, attempt, model, started_at, reply)
SELECT tenant_id, id, 'm1', 1, 'r', 1, 'm', created_at, '{{}}' FROM perdure.turns ORDER BY created_at;
ANALYZE perdure.turns, perdure.model_calls, perdure.conversations;
SELECT brin_summarize_new_values('perdure.model_calls_by_start')
"""
"""The last statement is what autovacuum does for an index with `autosummarize`, a little later."""
READ = """
SELECT relname, seq_tup_read + coalesce(idx_tup_fetch, 0) AS rows, seq_scan FROM pg_stat_xact_user_tables
WHERE relname IN ('turns', 'model_calls')
"""


@pytest.fixture(scope="module", params=[20_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
async def turns(request: pytest.FixtureRequest, urls: Urls) -> int:
    """The number of the tenant's turns, all ended, each with a model call. A twentieth of them began today."""
    database = urlsplit(urls.owner).path
    async with as_owner(urlsplit(urls.admin)._replace(path=database).geturl()) as admin:
        await admin.execute("TRUNCATE perdure.conversations CASCADE")
        await admin.execute(CONVERSATIONS, LOCAL_TENANT, request.param // TURNS_OF_CONVERSATION // 2)
        await admin.execute(TURNS)
    return int(request.param)


@pytest.fixture(scope="module", params=["app", "relay"])
async def one_connection(request: pytest.FixtureRequest, urls: Urls) -> AsyncIterator[Database]:
    database = await Database.connect(getattr(urls, request.param), max_connections=1, plan_once=True, keyring=KEYRING)
    yield database
    await database.close()


Query = Callable[[Connection, str, str], Awaitable[Any]]
PAGE: dict[str, Any] = {"agent": None, "limit": 20, "cursor": None}
QUERIES: dict[str, Query] = {
    "limits of a user": lambda tx, user, talk: tx.fetch(start._COUNT, user, talk, talk),
    "next queued turn": lambda tx, user, talk: tx.fetch(_NEXT_NOW, talk, talk),
    "newest turns": lambda tx, user, talk: views.list_turns(tx, None, status=None, conversation_id=None, **PAGE),
    "turns of a user": lambda tx, user, talk: views.list_turns(tx, user, status=None, conversation_id=None, **PAGE),
    "running turns": lambda tx, user, talk: views.list_turns(tx, None, status="running", conversation_id=None, **PAGE),
    "failed turns": lambda tx, user, talk: views.list_turns(tx, user, status="failed", conversation_id=None, **PAGE),
    "turns of a conversation": lambda tx, user, talk: conversations.turns_of(tx, talk, 20, None),
    "conversations": lambda tx, user, talk: conversations.list_conversations(tx, user, None, 20, None),
    "status page": lambda tx, user, talk: status.workload_of(tx),
    "stranded turns": lambda tx, user, talk: reconcile.start_stranded(tx, LOCAL_TENANT),
    "decided turns": lambda tx, user, talk: reconcile.wake_decided(tx, LOCAL_TENANT),
    "answered turns": lambda tx, user, talk: reconcile.wake_answered(tx, LOCAL_TENANT),
    "stopped turns": lambda tx, user, talk: reconcile.wake_stopped(tx, LOCAL_TENANT),
    "open turns": lambda tx, user, talk: reconcile.open_turns(tx, 0, 100),
    "use of the day": lambda tx, user, talk: budgets.used_today(tx, ["refunds", ""]),
}


@pytest.mark.parametrize("name", QUERIES)
async def test_a_plan_for_an_empty_tenant_reads_few_rows_of_a_large_one(
    turns: int, one_connection: Database, name: str
) -> None:
    db, query = one_connection, QUERIES[name]
    async with db.transaction(LOCAL_TENANT) as tx:
        ((talk, user),) = await tx.fetch("SELECT id, user_id FROM conversations LIMIT 1")
    async with db.transaction("empty") as tx:
        await query(tx, user, talk)
    async with db.transaction(LOCAL_TENANT) as tx:
        before = {row["relname"]: row for row in await tx.fetch(READ)}
        await query(tx, user, talk)
        after = {row["relname"]: row for row in await tx.fetch(READ)}
    spent = {
        table: [row[of] - (before[table][of] if table in before else 0) for of in ("rows", "seq_scan")]
        for table, row in after.items()
    }
    today = turns // TURNS_OF_CONVERSATION if name == "use of the day" else 0
    assert spent.get("turns", [0, 0])[0] <= today + 100, spent
    assert spent.get("model_calls", [0, 0])[0] <= today + (12_000 if today else 0), spent  # pages of its BRIN index
    assert not any(scans for _, scans in spent.values()), spent
