"""Lists of the few that wait stay quick beside all that was ever decided and done: no page reads a table whole."""

import re
from typing import Any

import asyncpg
import pytest

from perdure.store.approvals import views
from perdure.store.approvals.views import Filters
from perdure.store.calls import effects
from tests.conftest import Urls
from tests.harness import Harness
from tests.integration.test_approvals_at_scale import _FILL, best_of

pytestmark = pytest.mark.soak

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
async def worn(harness: Harness, urls: Urls) -> Harness:
    """Long in use: very many were decided and ran, three wait, one effect is unknown."""
    async with harness.db.transaction("local") as tx:
        await tx.execute("SET LOCAL statement_timeout = 0")
        for statement, *given in ((_FILL, DECIDED), (_DECIDE,), (_EFFECTS,)):
            await tx.execute(statement, *given, timeout=120)
    await harness.plan(("pay", {"amount": 1}))
    await harness.write("UPDATE tool_calls SET state = 'outcome_unknown' WHERE call_id = 't1.0'")
    for amount in range(3):
        await harness.open(await harness.plan(("pay", {"amount": amount})), "t1.0")
    owner = await asyncpg.connect(urls.owner, server_settings={"search_path": "perdure"})
    for table in ("approvals", "tool_calls", "turns", "users"):
        await owner.execute(f"VACUUM ANALYZE {table}")
    await owner.close()
    return harness


EFFECTS = (None, "outcome_unknown", "failed", "done")


async def test_a_page_reads_what_it_shows(worn: Harness) -> None:
    reviewer = worn.people["reviewer"].user_id
    approvals = [Filters(status=status) for status in (None, "pending", "expired", "outcome_unknown", "lost'")]
    approvals += [Filters(decidable_by=reviewer), Filters(status="pending", tool="pay", decidable_by=reviewer)]
    approvals.append(Filters(expiring_within_seconds=60))
    pages: list[tuple[str, Any]] = [("approvals", views._page(filters, 50, None)) for filters in approvals]
    pages += [("tool_calls|turns", effects._page(None, state, 50, None)) for state in EFFECTS]
    for tables, (statement, *given) in pages:
        values = ", ".join("'{}'" if value in ((), []) else f"'{value}'" for value in given)
        async with worn.db.transaction("local") as tx:  # its plan, as it is made once for all parameters
            assert await tx.fetchval("SHOW plan_cache_mode") == "force_generic_plan"
            await tx.execute(f"PREPARE page AS {statement}")
            plan = "\n".join(row[0] for row in await tx.fetch(f"EXPLAIN (ANALYZE, TIMING OFF) EXECUTE page({values})"))
            await tx.execute("DEALLOCATE page")
        assert not re.findall(rf"Seq Scan on ({tables})\b", plan), plan
        not_wanted = sum(int(number) for number in re.findall(r"Rows Removed by Filter: (\d+)", plan))
        assert not_wanted < 1_000, plan


async def test_the_first_pages_take_milliseconds(worn: Harness) -> None:
    mine = Filters(decidable_by=worn.people["reviewer"].user_id)
    spent = [
        await best_of(worn.db, lambda tx, f=filters: views.list_approvals(tx, f, 50, None))  # type: ignore[misc]
        for filters in (Filters(status="pending"), mine, Filters(status="outcome_unknown"))
    ]
    for state in EFFECTS:
        page = lambda tx, s=state: effects.list_effects(tx, None, s, 50, None)  # noqa: E731
        spent.append(await best_of(worn.db, page))
    print([round(value, 1) for value in spent])
    assert max(spent) < 50, spent
