"""A pass over all tenants in which something fails: what is left undone, what is said, and how often."""

from collections import Counter

import asyncpg
import pytest
from structlog.testing import capture_logs
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure.core.turns import OnBusy
from perdure.store.database import Connection
from perdure.store.turns.reconcile import OpenTurn, open_turns
from perdure.worker import reconcile
from perdure.worker.reconcile import Reconciler
from tests.conftest import Urls
from tests.desk import Desk
from tests.doubles.spoken import Line
from tests.integration.lost_turns import aged, status

STEPS = {
    "ring_stopped": "stops_not_rung",
    "ring_decided": "decisions_not_rung",
    "start_stranded": "stranded_turns_not_started",
    "forget_old": "old_keys_not_forgotten",
    "fall_back": "requests_not_handed_on",
    "escalate_all_overdue": "deadlines_not_escalated",
}


@pytest.mark.parametrize("broken", list(STEPS))
async def test_a_statement_that_fails_holds_up_no_other_and_is_said_once(
    desk: Desk, reconciler: Reconciler, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    first, _ = await desk.start(Line("one"))
    second, _ = await desk.start(Line("two"), conversation_id=first.conversation_id, on_busy=OnBusy.QUEUE)
    await desk.write("UPDATE turns SET status = 'failed', ended_at = now() WHERE id = $1", first.turn_id)
    await desk.write("UPDATE conversations SET active_turn_id = NULL WHERE id = $1", first.conversation_id)
    lost, _ = await desk.start(Line("lost"))
    await desk.write("DELETE FROM outbox WHERE turn_id = $1", lost.turn_id)
    await aged(desk, lost)
    await old_key(desk)

    async def fails(tx: Connection, *_: str) -> None:
        await tx.execute("SELECT 1 / 0")

    monkeypatch.setattr(reconcile, broken, fails)
    with capture_logs() as said:
        for _ in range(3):
            await reconciler.once()
    assert await status(desk, lost) == ("failed", "run_vanished")
    assert (await status(desk, second))[0] == ("queued" if broken == "start_stranded" else "accepted")
    assert await desk.value("SELECT count(*) FROM idempotency") == (broken == "forget_old")
    events = Counter(line["event"] for line in said if line.get("error"))
    assert events == {STEPS[broken]: 1}
    monkeypatch.undo()
    with capture_logs() as said:
        await reconciler.once()
    assert [line["event"] for line in said] == [f"{STEPS[broken]}_no_more"]


async def old_key(desk: Desk) -> None:
    """A client's key of the day before yesterday."""
    await desk.write(
        "INSERT INTO idempotency (tenant_id, user_id, route, key, body_digest, status, answer, created_at) "
        "VALUES ('local', $1, 'r', 'k', 'd', 200, '{}', now() - interval '25 hours') ON CONFLICT DO NOTHING",
        desk.people["requester"].user_id,
    )


async def test_a_tenant_that_cannot_be_read_does_not_stop_those_behind_it(
    desk: Desk, reconciler: Reconciler, urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = await asyncpg.connect(urls.owner, server_settings={"search_path": "perdure"})
    await owner.execute("INSERT INTO tenants (tenant_id) VALUES ('aaa') ON CONFLICT DO NOTHING")
    await owner.close()
    lost, _ = await desk.start(Line("lost"))
    await desk.write("DELETE FROM outbox WHERE turn_id = $1", lost.turn_id)
    await aged(desk, lost)

    async def not_theirs(tx: Connection, seconds: float, most_paused: int | None) -> list[OpenTurn]:
        if await tx.fetchval("SELECT current_setting('perdure.tenant')") == "aaa":
            await tx.execute("SELECT 1 / 0")
        return await open_turns(tx, seconds, most_paused)

    monkeypatch.setattr(reconcile, "open_turns", not_theirs)
    with capture_logs() as said:
        await reconciler.once()
    assert await status(desk, lost) == ("failed", "run_vanished")
    assert ("open_turns_not_listed", "aaa") in {(line["event"], line.get("where")) for line in said}


async def test_where_temporal_does_not_list_what_waits_nobody_is_taken_for_lost_and_the_others_are_looked_at(
    desk: Desk, reconciler: Reconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused, _ = await desk.start(Line("paused"))
    lost, _ = await desk.start(Line("lost"))
    for address in (paused, lost):
        await desk.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    await desk.write("UPDATE turns SET status = 'awaiting_approval' WHERE id = $1", paused.turn_id)
    await aged(desk, paused, lost)
    monkeypatch.setattr("perdure.worker.reconcile.FEW", 0)
    monkeypatch.setattr("perdure.worker.reconcile.LISTED_AT", 0)
    with monkeypatch.context() as broken:
        broken.setattr(Client, "list_workflows", _exhausted)
        with capture_logs() as said:
            await reconciler.once()
    assert await status(desk, paused) == ("awaiting_approval", None)
    assert await status(desk, lost) == ("failed", "run_vanished")
    assert "waiting_runs_not_listed" in {line["event"] for line in said}


def _exhausted(*_: object, **__: object) -> None:
    raise RPCError("too many lists", RPCStatusCode.RESOURCE_EXHAUSTED, b"")


@pytest.mark.parametrize(("most", "found"), [(0, 0), (2, 2), (None, 3)])
async def test_of_the_paused_turns_the_oldest_are_read_so_many_as_are_asked_for(
    desk: Desk, most: int | None, found: int
) -> None:
    await desk.write("UPDATE turns SET status = 'stopped', ended_at = now() WHERE ended_at IS NULL")
    paused = [(await desk.start(Line(str(n))))[0] for n in range(3)]
    going, _ = await desk.start(Line("going"))
    for address in (*paused, going):
        await desk.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
        await aged(desk, address)
    for address in paused:
        await desk.write("UPDATE turns SET status = 'awaiting_approval' WHERE id = $1", address.turn_id)
    async with desk.db.transaction("local") as tx:
        turns = [turn.address.turn_id for turn in await open_turns(tx, 1.0, most)]
    ours = [address.turn_id for address in paused]
    assert going.turn_id in turns
    assert [turn_id for turn_id in turns if turn_id in ours] == ours[:found]
