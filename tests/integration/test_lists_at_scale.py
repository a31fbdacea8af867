"""Lists of the few that wait stay quick beside all that was ever decided and done: no page reads a table whole."""

import re
from typing import Any

import asyncpg
import pytest

from perdure.store.approvals import views
from perdure.store.approvals.views import Filters
from perdure.store.calls import effects
from tests.conftest import Urls
from tests.desk import Desk
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
async def worn(desk: Desk, urls: Urls) -> Desk:
    """Long in use: very many were decided and ran, three wait, one effect is unknown."""
    async with desk.db.transaction("local") as tx:
        await tx.execute("SET LOCAL statement_timeout = 0")
        for statement, *given in ((_FILL, DECIDED), (_DECIDE,), (_EFFECTS,)):
            await tx.execute(statement, *given, timeout=120)
    await desk.plan(("pay", {"amount": 1}))
    await desk.write("UPDATE tool_calls SET state = 'outcome_unknown' WHERE call_id = 't1.0'")
    for amount in range(3):
        await desk.open(await desk.plan(("pay", {"amount": amount})), "t1.0")
    owner = await asyncpg.connect(urls.owner, server_settings={"search_path": "perdure"})
    await owner.execute("VACUUM ANALYZE approvals")
    await owner.execute("VACUUM ANALYZE tool_calls")
    await owner.execute("ANALYZE turns; ANALYZE users")
    await owner.close()
    return desk


def approvals_page(desk: Desk, name: str) -> Any:
    """The statement and its parameters."""
    reviewer = desk.people["reviewer"].user_id
    filters = {
        "all": Filters(),
        "pending": Filters(status="pending"),
        "mine": Filters(decidable_by=reviewer),
        "expiring": Filters(expiring_within_seconds=60),
        "my pending of a tool": Filters(status="pending", tool="pay", decidable_by=reviewer),
        "expired": Filters(status="expired"),
        "unknown": Filters(status="outcome_unknown"),
        "no such status": Filters(status="lost'"),
    }
    return views._page(filters[name], 50, None)


EFFECTS = {"all": None, "unknown": "outcome_unknown", "failed": "failed", "done": "done"}


async def plan_of(desk: Desk, page: Any) -> str:
    """The plan of a page, as it is made once for all parameters."""
    statement, *given = page
    values = ", ".join("'{}'" if value in ((), []) else f"'{value}'" for value in given)
    async with desk.db.transaction("local") as tx:
        assert await tx.fetchval("SHOW plan_cache_mode") == "force_generic_plan"
        await tx.execute(f"PREPARE page AS {statement}")
        rows = await tx.fetch(f"EXPLAIN (ANALYZE, TIMING OFF) EXECUTE page({values})")
        await tx.execute("DEALLOCATE page")
    return "\n".join(row[0] for row in rows)


@pytest.mark.parametrize(
    "name", ["all", "pending", "mine", "expiring", "my pending of a tool", "expired", "unknown", "no such status"]
)
async def test_a_page_of_approvals_reads_what_it_shows(worn: Desk, name: str) -> None:
    plan = await plan_of(worn, approvals_page(worn, name))
    assert not re.findall(r"Seq Scan on approvals\b", plan), plan
    assert passed_over(plan) < 1_000, plan


@pytest.mark.parametrize("name", EFFECTS)
async def test_a_page_of_effects_reads_what_it_shows(worn: Desk, name: str) -> None:
    plan = await plan_of(worn, effects._page(None, EFFECTS[name], 50, None))
    assert not re.findall(r"Seq Scan on (tool_calls|turns)\b", plan), plan
    assert passed_over(plan) < 1_000, plan


def passed_over(plan: str) -> int:
    """Rows that were read and not wanted."""
    return sum(int(number) for number in re.findall(r"Rows Removed by Filter: (\d+)", plan))


async def test_the_first_pages_take_milliseconds(worn: Desk) -> None:
    reviewer = worn.people["reviewer"].user_id
    db = worn.db
    approvals = {
        "pending": Filters(status="pending"),
        "mine": Filters(decidable_by=reviewer),
        "lost": Filters(status="outcome_unknown"),
    }
    spent = {
        name: await best_of(db, lambda tx, f=filters: views.list_approvals(tx, f, 50, None))  # type: ignore[misc]
        for name, filters in approvals.items()
    } | {
        name: await best_of(db, lambda tx, s=state: effects.list_effects(tx, None, s, 50, None))  # type: ignore[misc]
        for name, state in EFFECTS.items()
    }
    print({name: round(value, 1) for name, value in spent.items()})
    assert max(spent.values()) < 50, spent


async def test_what_is_shown_is_what_waits(worn: Desk) -> None:
    async with worn.db.transaction("local") as tx:
        waiting, _ = await views.list_approvals(tx, Filters(status="pending"), 50, None)
        mine, _ = await views.list_approvals(tx, Filters(decidable_by=worn.people["reviewer"].user_id), 50, None)
        lost, _ = await effects.list_effects(tx, None, "outcome_unknown", 50, None)
        done, following = await views.list_approvals(tx, Filters(status="done"), 50, None)
        more, _ = await views.list_approvals(tx, Filters(status="done"), 50, following)
    assert [each["status"] for each in waiting] == ["pending"] * 3
    assert [each["id"] for each in mine] == [each["id"] for each in waiting]
    assert [each["state"] for each in lost] == ["outcome_unknown"]
    assert len({each["id"] for each in (*done, *more)}) == 100
