"""PgBouncer between Perdure and Postgres, with a pool that is much smaller than the number of clients."""

import asyncio
from pathlib import Path

import pytest

from perdure.contracts.errors import InvariantBroken
from perdure.store.database import Database
from perdure.store.migrations import upgrade
from tests.acceptance.running import running
from tests.acceptance.turns import Turns, json_of
from tests.conftest import Template, Urls, empty_database
from tests.pooler import pooled


@pytest.mark.parametrize(("mode", "statement_cache"), [("session", True), ("transaction", False)])
async def test_statements_behind_a_pooler_see_their_own_tenant(urls: Urls, mode: str, statement_cache: bool) -> None:
    async with pooled(urls, mode, connections=20 if mode == "session" else 2) as behind:
        database = await Database.connect(behind.app, plan_once=True, statement_cache=statement_cache)

        async def read(tenant: str) -> list[str]:
            async with database.transaction(tenant) as tx:
                await tx.fetchval("SELECT count(*) FROM turns WHERE tenant_id <> $1", tenant)
                names = ("perdure.tenant", "search_path", "jit", "plan_cache_mode")
                return [await tx.fetchval("SELECT current_setting($1)", name) for name in names]

        tenants = [f"tenant-{number}" for number in range(40)]
        settings = await asyncio.gather(*map(read, tenants))
        assert settings == [[tenant, "perdure", "off", "force_generic_plan"] for tenant in tenants]
        assert await asyncio.gather(*(database.principal_row("none") for _ in range(40))) == [None] * 40
        await database.close()


@pytest.mark.parametrize(("connections", "more", "code"), [
    *((4, more, "statements_lost") for more in ("", "server_round_robin = 1\nmin_pool_size = 2")),
    (4, "server_round_robin = 1", "statements_lost"),
    (1, "", "one_connection"),
])  # fmt: skip
async def test_a_pooler_that_cannot_work_is_refused(urls: Urls, connections: int, more: str, code: str) -> None:
    async with pooled(urls, connections=connections, more=more) as behind:
        with pytest.raises(InvariantBroken) as refused:
            await Database.connect(behind.app)
    assert refused.value.code == code


@pytest.mark.timeout(240)
async def test_a_stack_migrates_and_runs_behind_a_pooler_in_transaction_mode(
    template: Template, tmp_path: Path
) -> None:
    orders = range(901, 925)
    async with empty_database(template) as urls, pooled(urls, connections=3) as behind:
        await asyncio.to_thread(upgrade, behind.owner, "0009")
        given = {"DATABASE_URL": behind.app, "DATABASE_OWNER_URL": behind.owner, "DATABASE_RELAY_URL": behind.relay}
        with running(tmp_path / "home", "--examples", PERDURE_STATEMENT_CACHE="false", **given) as stack:
            async with Turns(stack, "refunds") as turns:
                begun = await turns.begin_all([f"Refund order {order}" for order in orders])
                assert await turns.until(begun, "awaiting_approval") == []
                await asyncio.gather(*map(turns.approve, begun))
                assert await turns.until(begun, "completed") == []
                found = (await json_of(turns.reviewer.get("/v1/effects", params={"limit": 200})))["items"]
                assert sorted(each["turn_id"] for each in found) == sorted(begun)
