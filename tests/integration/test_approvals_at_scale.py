"""With ten thousand paused turns the reconciler's and the lists' statements go by indexes and take milliseconds."""

import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure.contracts.approvals import RequestKind
from perdure.store.approvals import reissue, review, views
from perdure.store.approvals.views import Filters, list_oldest
from perdure.store.calls import effects
from perdure.store.database import Connection, Database
from perdure.store.turns import reconcile as open_turns
from perdure.worker.reconcile import MAX_REASSIGNED, Reconciler
from tests.conftest import Urls, as_owner
from tests.harness import Harness

pytestmark = pytest.mark.soak

PAUSED = 10_000
_FILL = """
WITH asker AS (SELECT id FROM users WHERE name = 'requester'),
talks AS (
  INSERT INTO conversations (id, tenant_id, user_id, agent_id)
  SELECT gen_random_uuid(), 'local', asker.id, 'desk' FROM asker, generate_series(1, $1) RETURNING id, user_id
), begun AS (
  INSERT INTO turns (id, tenant_id, conversation_id, user_id, agent_id, agent_version, topology, status, routing,
    limits, message_id, through_seq)
  SELECT gen_random_uuid(), 'local', id, user_id, 'desk', 'v', 'skill_pipeline', 'awaiting_approval', '{}', '{}',
    gen_random_uuid(), 0 FROM talks RETURNING id, conversation_id, user_id
)
INSERT INTO approvals (id, tenant_id, conversation_id, turn_id, call_id, agent_id, tool, tool_version, effect, risk,
  args, schema, digest, nonce, rule, requested_by, reviewer_role, expires_at, on_timeout, fallback_reviewer,
  fallback_at)
SELECT gen_random_uuid(), 'local', conversation_id, id, 't1.0', 'desk', 'pay', 'v', 'keyed', 'high', '{}', '{}',
  'd', 'n', 'r', user_id, 'reviewer', now() + interval '7 days', 'escalate', 'reviewer',
  now() + interval '1 day' FROM begun
"""


@pytest.fixture(scope="module")
async def paused(harness: Harness, urls: Urls) -> Harness:
    """As many paused turns, each with its request, and statistics as autovacuum would keep them."""
    async with harness.db.transaction("local") as tx:
        await tx.execute("SET LOCAL statement_timeout = 0")
        await tx.execute(_FILL, PAUSED, timeout=60)
    async with as_owner(urls.owner) as owner:
        await owner.execute("ANALYZE approvals; ANALYZE turns; ANALYZE users; ANALYZE outbox")
    return harness


STATEMENTS: dict[str, tuple[str, tuple[object, ...]]] = {
    "fall back": (review._FALL_BACK, ()),
    "escalate": (review._ALL, ()),
    "ring": (open_turns._WAKE_DECIDED, ("local", "ring")),
}


@pytest.mark.parametrize("name", STATEMENTS)
async def test_no_reconciler_pass_reads_all_approvals_or_turns(paused: Harness, relay: Database, name: str) -> None:
    statement, given = STATEMENTS[name]
    async with relay.transaction("local") as tx:
        plan = "\n".join(row[0] for row in await tx.fetch(f"EXPLAIN {statement}", *given))
    assert not re.findall(r"Seq Scan on (approvals|turns)\b", plan), plan


async def best_of(database: Database, step: Callable[[Connection], Awaitable[Any]], times: int = 5) -> float:
    """The least time of a few, in milliseconds."""
    took = []
    for _ in range(times):
        async with database.transaction("local") as tx:
            began = time.perf_counter()
            await step(tx)
            took.append(time.perf_counter() - began)
    return min(took) * 1_000


async def test_a_pass_over_ten_thousand_paused_turns_takes_milliseconds(paused: Harness, relay: Database) -> None:
    spent = {
        "fall back": await best_of(relay, review.fall_back),
        "escalate": await best_of(relay, review.escalate_all_overdue),
        "ring": await best_of(relay, lambda tx: open_turns.wake_decided(tx, "local")),
    }
    print({name: round(value, 1) for name, value in spent.items()})
    assert spent["fall back"] < 50 and spent["escalate"] < 50, spent
    assert spent["ring"] < 500, spent


async def test_lists_and_ageing_stay_fast_with_ten_thousand_pending_requests(paused: Harness) -> None:
    reviewer = paused.people["reviewer"].user_id
    lists = {"pending": Filters(status="pending"), "mine": Filters(decidable_by=reviewer)}
    lists |= {"expiring": Filters(expiring_within_seconds=60), "outdated": Filters("outdated")}
    spent = {
        name: await best_of(paused.db, lambda tx, f=filters: views.list_approvals(tx, f, 50, None))  # type: ignore[misc]
        for name, filters in lists.items()
    }
    spent["by age"] = await best_of(paused.db, lambda tx: list_oldest(tx, None))
    print({name: round(value, 1) for name, value in spent.items()})
    assert max(spent.values()) < 1_000, spent


async def test_all_due_turns_continue_in_small_steps(paused: Harness, relay: Database, reconciler: Reconciler) -> None:
    await paused.write("UPDATE approvals SET fallback_at = now() WHERE agent_id = 'desk' AND call_id = 't1.0'")
    async with relay.transaction("local") as tx:
        began = time.perf_counter()
        assert await review.fall_back(tx) == review.MAX_ROWS_PER_TRANSACTION == 50
        print("held for ms", round(1_000 * (time.perf_counter() - began), 1))
    done = "SELECT count(*) FROM approvals WHERE fell_back_at IS NOT NULL AND assignee IS NOT NULL"
    assert await paused.value(done) == 50
    await reconciler._repair("local")
    assert await paused.value(done) == 50 + MAX_REASSIGNED, "one pass does many of them"
    of_one = "SELECT count(*) FROM audit WHERE kind = 'approval.fell_back' GROUP BY xmin ORDER BY 1 DESC LIMIT 1"
    assert await paused.value(of_one) == 50, "the audit chain is free for others in between"


DECIDED = 30_000
_DECIDE = """
WITH over AS (UPDATE turns SET status = 'completed', ended_at = now() WHERE status = 'awaiting_approval')
UPDATE approvals SET status = 'done', requested_at = requested_at - random() * interval '90 days', decided_at = now()
"""
_EFFECTS = """
INSERT INTO tool_calls (tenant_id, turn_id, call_id, conversation_id, agent_id, key, tool, tool_version, effect, args,
  digest, state, created_at)
SELECT 'local', id, 't9.' || g, conversation_id, agent_id, gen_random_uuid()::text, 'pay', 'v',
  CASE g WHEN 2 THEN 'read' ELSE 'keyed' END, '{}', 'd', 'done', now() - random() * interval '90 days'
FROM turns, generate_series(1, 3) g
"""


@pytest.fixture(scope="module")
async def decided(harness: Harness, urls: Urls) -> Harness:
    """Long in use: very many were decided and ran, three wait, one effect is unknown."""
    async with harness.db.transaction("local") as tx:
        await tx.execute("SET LOCAL statement_timeout = 0")
        for statement, *given in ((_FILL, DECIDED), (_DECIDE,), (_EFFECTS,)):
            await tx.execute(statement, *given, timeout=120)
    await harness.plan(("pay", {"amount": 1}))
    await harness.write("UPDATE tool_calls SET state = 'outcome_unknown' WHERE call_id = 't1.0'")
    for amount in range(3):
        await harness.open(await harness.plan(("pay", {"amount": amount})), "t1.0")
    async with as_owner(urls.owner) as owner:
        for table in ("approvals", "tool_calls", "turns", "users"):
            await owner.execute(f"VACUUM ANALYZE {table}")
    return harness


EFFECTS = (None, "outcome_unknown", "failed", "done")


async def test_a_page_of_approvals_reads_only_its_own_rows(decided: Harness) -> None:
    reviewer = decided.people["reviewer"].user_id
    approvals = [Filters(status=status) for status in (None, "pending", "expired", "outcome_unknown", "lost'")]
    approvals += [Filters(decidable_by=reviewer), Filters(status="pending", tool="pay", decidable_by=reviewer)]
    approvals += [Filters(expiring_within_seconds=60), Filters("approved", kind=RequestKind.APPROVAL)]
    pages: list[tuple[str, Any]] = [("approvals", views._page(filters, 50, None, None)) for filters in approvals]
    pages += [("approvals", views._page(Filters("outdated"), 50, None, [])), ("approvals", (reissue._OPEN,))]
    pages += [("tool_calls|turns", effects._page(None, state, 50, None)) for state in EFFECTS]
    for tables, (statement, *given) in pages:
        values = ", ".join("'{}'" if value in ((), []) else f"'{value}'" for value in given)
        values = f"({values})" if given else ""
        async with decided.db.transaction("local") as tx:  # its plan, as it is made once for all parameters
            assert await tx.fetchval("SHOW plan_cache_mode") == "force_generic_plan"
            await tx.execute(f"PREPARE page AS {statement}")
            plan = "\n".join(row[0] for row in await tx.fetch(f"EXPLAIN (ANALYZE, TIMING OFF) EXECUTE page{values}"))
            await tx.execute("DEALLOCATE page")
        assert not re.findall(rf"Seq Scan on ({tables})\b", plan), plan
        assert sum(int(number) for number in re.findall(r"Rows Removed by Filter: (\d+)", plan)) < 1_000, plan


async def test_the_first_pages_of_approvals_and_effects_take_milliseconds(decided: Harness) -> None:
    mine = Filters(decidable_by=decided.people["reviewer"].user_id)
    spent = [
        await best_of(decided.db, lambda tx, f=filters: views.list_approvals(tx, f, 50, None))  # type: ignore[misc]
        for filters in (Filters(status="pending"), mine, Filters(status="outcome_unknown"))
    ]
    for state in EFFECTS:
        page = lambda tx, s=state: effects.list_effects(tx, None, s, 50, None)  # noqa: E731
        spent.append(await best_of(decided.db, page))
    print([round(value, 1) for value in spent])
    assert max(spent) < 50, spent
