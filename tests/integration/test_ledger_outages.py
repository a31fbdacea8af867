"""Postgres goes away under a `local` call: that is no answer of the tool's, so the next attempt does the call."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import asyncpg
import pytest
from temporalio.exceptions import ApplicationError

from perdure.activities.tools import ToolActivities
from perdure.contracts.calls import CallState, ToolOutcome
from perdure.contracts.errors import InvariantBroken
from perdure.contracts.turns import TurnAddress
from perdure.sdk.tools import ToolContext
from perdure.store.database import Database
from tests.conftest import KEYRING, Urls
from tests.desk import Desk, gathered, until


@pytest.fixture
async def admin(urls: Urls) -> AsyncIterator[asyncpg.Connection]:
    """Ends other connections."""
    connection = await asyncpg.connect(urls.admin)
    yield connection
    await connection.close()


@asynccontextmanager
async def entities_locked(urls: Urls) -> AsyncIterator[None]:
    """The table into which the tool writes makes it wait."""
    owner = await asyncpg.connect(urls.owner)
    try:
        async with owner.transaction():
            await owner.execute("LOCK TABLE perdure.entities IN ACCESS EXCLUSIVE MODE")
            yield
    finally:
        await owner.close()


async def ended(admin: asyncpg.Connection, urls: Urls, where: str) -> None:
    """End the module's one connection of which `where` holds, as a restart of Postgres would."""
    database = urls.app.rpartition("/")[2]
    for _ in range(3_000):
        found = await admin.fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 "
            f"AND usename = 'perdure_app' AND {where}",
            database,
        )
        if found:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the tool never came to wait")


async def is_left_to_the_next_attempt(desk: Desk, address: TurnAddress, attempt: asyncio.Task[ToolOutcome]) -> None:
    """The attempt failed with Postgres, nothing is settled or counted as lost; the next one does the call, once."""
    (failure,) = await gathered(attempt)
    assert isinstance(failure, ApplicationError), failure
    assert (failure.type, failure.non_retryable) == ("store_unavailable", False)
    row = await desk.call_row(address)
    assert (row["state"], row["lost_settles"], row["outcome"]) == ("reserved", 0, None)
    assert (await desk.run_tool(address, attempt=2)).state is CallState.DONE
    assert await desk.value("SELECT count(*) FROM entities WHERE created_by_turn = $1", address.turn_id) == 1


async def test_a_connection_that_breaks_inside_the_tool(desk: Desk, urls: Urls, admin: asyncpg.Connection) -> None:
    address = await desk.approved(("jot", {}))
    async with entities_locked(urls):
        attempt = asyncio.create_task(desk.run_tool(address))
        await ended(admin, urls, "wait_event_type = 'Lock'")
    await is_left_to_the_next_attempt(desk, address, attempt)


async def test_a_statement_that_hangs_inside_the_tool(desk: Desk, urls: Urls) -> None:
    address = await desk.approved(("jot", {}))
    impatient = await Database.connect(urls.app, wait_seconds=2.0, keyring=KEYRING)
    activity = ToolActivities(replace(desk.deps, db=impatient)).run
    async with entities_locked(urls):
        attempt = asyncio.create_task(desk.activity(activity, await desk.tool_call(address, "t1.0")))
        await gathered(attempt)
    await impatient.close()
    await is_left_to_the_next_attempt(desk, address, attempt)


async def test_a_connection_that_breaks_between_the_tool_and_its_settle(
    desk: Desk, urls: Urls, admin: asyncpg.Connection
) -> None:
    desk.world.go_on.clear()
    address = await desk.approved(("jot", {"mode": "wait"}))
    running = desk.world.running
    attempt = asyncio.create_task(desk.run_tool(address))
    await until(lambda: desk.world.running > running)
    await ended(admin, urls, "state = 'idle in transaction'")
    desk.world.go_on.set()
    await is_left_to_the_next_attempt(desk, address, attempt)


async def test_no_free_connection_for_the_tool(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    address = await desk.approved(("jot", {}))
    real = desk.db.transaction

    def busy_once(tenant_id: str, turn_id: str | None = None) -> Any:
        if turn_id is not None:  # the claim
            return real(tenant_id, turn_id)
        monkeypatch.setattr(desk.db, "transaction", real)
        raise TimeoutError  # as the pool does after its wait

    call = await desk.tool_call(address, "t1.0")
    monkeypatch.setattr(desk.db, "transaction", busy_once)
    attempt = asyncio.create_task(desk.activity(ToolActivities(desk.deps).run, call))
    await gathered(attempt)
    await is_left_to_the_next_attempt(desk, address, attempt)


async def test_a_tool_that_runs_out_of_time_while_postgres_answers_has_failed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(context: ToolContext, *given: Any, **named: Any) -> None:
        raise TimeoutError  # as `send` does when the target is silent

    monkeypatch.setattr(ToolContext, "send", slow)
    address = await desk.plan(("jot", {}))
    outcome = await desk.run_tool(address)
    assert outcome.state is CallState.FAILED


async def test_an_error_that_the_tool_raised_is_not_counted_as_a_lost_settle(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(context: ToolContext, *given: Any, **named: Any) -> None:
        raise InvariantBroken("odd_ledger", "something of ours is broken")

    monkeypatch.setattr(ToolContext, "send", broken)
    address = await desk.plan(("jot", {}))
    with pytest.raises(ApplicationError) as raised:
        await desk.run_tool(address)
    assert raised.value.type == "odd_ledger"
    assert (await desk.call_row(address))["lost_settles"] == 0
