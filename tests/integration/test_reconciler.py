"""Nothing is left behind: turns whose run is gone, bells that were lost, queues that nobody admits."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise

import asyncpg
import pytest
from structlog.testing import capture_logs
from temporalio.client import Client

from contracts.ids import turn_workflow_id
from contracts.turns import TurnAddress, TurnStatus
from policy.admission import OnBusy
from relay import reconcile
from relay.deliver import Doorbell
from relay.reconcile import Reconciler
from store.database import Connection, Database
from store.open_turns import OpenTurn, open_turns
from store.turns import request_stop
from tests.conftest import Urls
from tests.desk import Desk
from tests.doubles.spoken import Line


@pytest.fixture(scope="module")
async def relay(urls: Urls) -> AsyncIterator[Database]:
    """The database as the relay sees it."""
    database = await Database.connect(urls.relay, most=8)
    yield database
    await database.close()


@pytest.fixture
def reconciler(relay: Database, temporal: Client) -> Reconciler:
    """A fresh one, as after a restart."""
    return Reconciler(relay, temporal, Doorbell(temporal, relay))


async def begun(desk: Desk, *, conversation_id: str | None = None) -> TurnAddress:
    """A turn whose workflow runs, on a queue that nobody serves."""
    address, started = await desk.start(Line("hi"), conversation_id=conversation_id)
    assert started.note is not None and await desk.deps.doorbell.deliver_soon(started.note)
    return address


async def aged(desk: Desk, *turns: TurnAddress) -> None:
    """The turns began a minute ago."""
    await desk.write(
        "UPDATE turns SET created_at = created_at - interval '1 minute' WHERE id = ANY($1)",
        [address.turn_id for address in turns],
    )


async def status(desk: Desk, address: TurnAddress) -> tuple[str, str | None]:
    """The turn's status and its problem's code."""
    row = (await desk.rows("SELECT status, problem FROM turns WHERE id = $1", address.turn_id))[0]
    return row["status"], (row["problem"] or {}).get("code")


async def test_a_turn_terminated_by_hand_fails_within_thirty_seconds_and_the_conversation_goes_on(
    desk: Desk, reconciler: Reconciler, temporal: Client
) -> None:
    address = await begun(desk)
    waiting, _ = await desk.start(Line("next"), conversation_id=address.conversation_id, on_busy=OnBusy.QUEUE)
    stop = asyncio.Event()
    running = asyncio.create_task(reconciler.run(stop))
    await temporal.get_workflow_handle(turn_workflow_id(address.turn_id)).terminate("by hand")
    began = time.monotonic()
    while (await status(desk, address))[0] != "failed":
        assert time.monotonic() - began < 30
        await asyncio.sleep(0.1)
    stop.set()
    running.cancel()
    assert await status(desk, address) == ("failed", "run_terminated")
    assert await status(desk, waiting) == ("accepted", None)
    described = await temporal.get_workflow_handle(turn_workflow_id(waiting.turn_id)).describe()
    assert described.task_queue == desk.routing.turns
    kinds = await desk.kinds(address.turn_id)
    assert kinds[-2:] == ["workflow.error", "done"]


@pytest.mark.parametrize("how", ["terminate", "vanish"])
async def test_a_turn_whose_run_is_gone_is_finished_once(
    desk: Desk, reconciler: Reconciler, temporal: Client, how: str
) -> None:
    if how == "vanish":
        address, started = await desk.start(Line("hi"))
        assert started.note is not None
        await desk.write("DELETE FROM outbox WHERE id = $1", started.note.id)
    else:
        address = await begun(desk)
        await temporal.get_workflow_handle(turn_workflow_id(address.turn_id)).terminate()
    await aged(desk, address)
    passes = await asyncio.gather(*(reconciler.once() for _ in range(3)))
    assert sum(passes) >= 1
    assert await status(desk, address) == ("failed", "run_vanished" if how == "vanish" else "run_terminated")
    assert (await desk.kinds(address.turn_id)).count("done") == 1


async def test_a_run_that_lives_or_has_only_just_begun_is_left_alone(desk: Desk, reconciler: Reconciler) -> None:
    alive, young = await begun(desk), (await desk.start(Line("hi")))[0]
    await desk.write("DELETE FROM outbox WHERE turn_id = $1", young.turn_id)
    await aged(desk, alive)
    await reconciler.once()
    assert await status(desk, alive) == ("accepted", None)
    assert await status(desk, young) == ("accepted", None)


async def test_a_turn_whose_start_is_still_to_be_delivered_has_not_lost_its_run(
    desk: Desk, reconciler: Reconciler
) -> None:
    address, _ = await desk.start(Line("hi"))
    await aged(desk, address)
    assert await reconciler.once() == 0
    assert await status(desk, address) == ("accepted", None)


async def test_a_queued_turn_that_nobody_admitted_is_started_and_not_taken_for_lost(
    desk: Desk, reconciler: Reconciler, temporal: Client
) -> None:
    first, _ = await desk.start(Line("one"))
    second, _ = await desk.start(Line("two"), conversation_id=first.conversation_id, on_busy=OnBusy.QUEUE)
    third, _ = await desk.start(Line("three"), conversation_id=first.conversation_id, on_busy=OnBusy.QUEUE)
    await desk.write("UPDATE turns SET status = 'failed', ended_at = now() WHERE id = $1", first.turn_id)
    await desk.write("UPDATE conversations SET active_turn_id = NULL WHERE id = $1", first.conversation_id)
    await aged(desk, second, third)
    for _ in range(2):
        await reconciler.once()
        assert await status(desk, second) == ("accepted", None)
        assert await status(desk, third) == ("queued", None)
    starts = await desk.rows("SELECT turn_id FROM outbox WHERE kind = 'start' AND turn_id = $1", second.turn_id)
    assert len(starts) == 1
    assert await desk.kinds(second.turn_id) == ["queued", "ready"]
    row = (await desk.rows("SELECT through_seq, message_id FROM turns WHERE id = $1", second.turn_id))[0]
    assert await desk.value("SELECT seq FROM messages WHERE id = $1", row["message_id"]) == row["through_seq"] + 1


async def test_a_decided_turn_whose_bell_was_lost_is_rung_again(desk: Desk, reconciler: Reconciler) -> None:
    address = await desk.plan(("pay", {}), ("post", {}))
    first, second = await desk.open(address, "t1.0", "t1.1")
    await desk.decide(first.request_id)
    await desk.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    await reconciler.once()
    assert not await bells(desk, address), "one of the round is still open"
    await desk.decide(second.request_id)
    await desk.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    await reconciler.once()
    await reconciler.once()
    assert await bells(desk, address) == 1, "rung once, not at every pass"


async def test_a_decided_turn_that_never_goes_on_is_rung_ever_more_seldom_and_told_of_once(
    desk: Desk, reconciler: Reconciler
) -> None:
    address = await desk.plan(("pay", {}))
    (request,) = await desk.open(address, "t1.0")
    await desk.decide(request.request_id)
    rung_at = []
    with capture_logs() as said:
        for minute in range(80):
            await desk.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
            await reconciler.once()
            if await bells(desk, address):
                rung_at.append(minute)
            await passed(desk, address, "61 seconds")
    gaps = [after - before for before, after in pairwise(rung_at)]
    assert rung_at[:2] == [0, 1], "the first ones come soon"
    assert gaps == sorted(gaps)
    assert gaps[-3:] == [15, 15, 15], "in the end each quarter of an hour"
    told = [line for line in said if line["event"] == "decided_turn_still_waits"]
    assert [(line["where"], line["log_level"]) for line in told] == [(address.turn_id, "error")]


async def passed(desk: Desk, address: TurnAddress, span: str) -> None:
    """Time passes for a turn."""
    await desk.write(f"UPDATE turns SET rung_at = rung_at - interval '{span}' WHERE id = $1", address.turn_id)
    await desk.write(
        f"UPDATE approvals SET decided_at = decided_at - interval '{span}' WHERE turn_id = $1", address.turn_id
    )


async def test_a_turn_rung_in_vain_is_rung_at_once_for_its_next_decision(desk: Desk, reconciler: Reconciler) -> None:
    address = await desk.plan(("pay", {}))
    (request,) = await desk.open(address, "t1.0")
    await desk.decide(request.request_id)
    await desk.write(
        "UPDATE approvals SET decided_at = decided_at - interval '1 day' WHERE turn_id = $1", address.turn_id
    )
    await desk.write("UPDATE turns SET rung_at = now() - interval '2 minutes' WHERE id = $1", address.turn_id)
    await desk.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    await reconciler.once()
    assert not await bells(desk, address), "it has been rung for this one, long after it"
    await desk.write("UPDATE approvals SET decided_at = now() WHERE turn_id = $1", address.turn_id)
    await reconciler.once()
    assert await bells(desk, address) == 1


async def test_an_overdue_turn_is_rung(desk: Desk, reconciler: Reconciler) -> None:
    address = await desk.plan(("pay", {}))
    (request,) = await desk.open(address, "t1.0")
    await desk.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    await reconciler.once()
    assert not await bells(desk, address)
    await desk.write("UPDATE approvals SET expires_at = now() WHERE id = $1", request.request_id)
    await reconciler.once()
    assert await bells(desk, address) == 1


async def test_a_turn_that_waits_for_a_person_to_settle_an_effect_is_not_rung_until_it_is_settled(
    desk: Desk, reconciler: Reconciler
) -> None:
    address = await desk.approved(("post", {"mode": "break"}))
    await desk.run_tool(address)
    await desk.write("UPDATE turns SET status = $2 WHERE id = $1", address.turn_id, TurnStatus.AWAITING_APPROVAL.value)
    await desk.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    await reconciler.once()
    assert not await bells(desk, address)
    await desk.write("UPDATE tool_calls SET state = 'done' WHERE turn_id = $1", address.turn_id)
    await reconciler.once()
    assert await bells(desk, address) == 1


async def bells(desk: Desk, address: TurnAddress) -> int:
    """Rings for the turn in the outbox."""
    rows = await desk.rows("SELECT kind FROM outbox WHERE turn_id = $1 AND kind = 'ring'", address.turn_id)
    return len(rows)


async def test_many_lost_turns_of_many_conversations_are_finished_in_one_pass(
    desk: Desk, reconciler: Reconciler, temporal: Client
) -> None:
    turns = [(await desk.start(Line(str(n))))[0] for n in range(30)]
    await desk.write("DELETE FROM outbox WHERE turn_id = ANY($1)", [address.turn_id for address in turns])
    await aged(desk, *turns)
    assert await reconciler.once() == len(turns)
    assert {(await status(desk, address))[1] for address in turns} == {"run_vanished"}


async def test_a_namespace_that_temporal_does_not_know_costs_no_turn(
    desk: Desk, relay: Database, temporal: Client
) -> None:
    address = await begun(desk)
    await aged(desk, address)
    elsewhere = await Client.connect(temporal.service_client.config.target_host, namespace="misspelt")
    assert await Reconciler(relay, elsewhere, Doorbell(elsewhere, relay)).once() == 0
    assert await status(desk, address) == ("accepted", None)


async def test_a_stop_that_came_before_the_workflow_was_there_still_stops_it(
    desk: Desk, reconciler: Reconciler, temporal: Client
) -> None:
    """The bell finds no workflow; then the start is delivered as it was written down, without the stop."""
    address, started = await desk.start(Line("hi"))
    async with desk.db.transaction("local") as tx:
        _, _, note = await request_stop(tx, address.turn_id, desk.people["requester"].user_id)
    assert note is not None and await desk.deps.doorbell.deliver_soon(note)
    assert started.note is not None and await desk.deps.doorbell.deliver_soon(started.note)
    await reconciler.once()
    assert not await stops(desk, address), "it has only just been asked to"
    await desk.write(
        "UPDATE turns SET stop_requested_at = stop_requested_at - interval '11 seconds' WHERE id = $1", address.turn_id
    )
    for _ in range(3):
        await reconciler.once()
        assert await stops(desk, address) == 1, "rung once, not at every pass"
    await desk.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    await reconciler.once()
    assert not await stops(desk, address)
    await desk.write("UPDATE turns SET rung_at = now() - interval '61 seconds' WHERE id = $1", address.turn_id)
    await reconciler.once()
    assert await stops(desk, address) == 1
    await temporal.get_workflow_handle(turn_workflow_id(address.turn_id)).terminate()


async def stops(desk: Desk, address: TurnAddress) -> int:
    """Stops for the turn in the outbox."""
    return len(await desk.rows("SELECT FROM outbox WHERE turn_id = $1 AND kind = 'stop'", address.turn_id))


STEPS = {
    "ring_stopped": "stops_not_rung",
    "ring_decided": "decisions_not_rung",
    "start_stranded": "stranded_turns_not_started",
    "forget_old": "old_keys_not_forgotten",
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

    async def not_theirs(tx: Connection, seconds: float, *, paused_too: bool) -> list[OpenTurn]:
        if await tx.fetchval("SELECT current_setting('perdure.tenant')") == "aaa":
            await tx.execute("SELECT 1 / 0")
        return await open_turns(tx, seconds, paused_too=paused_too)

    monkeypatch.setattr(reconcile, "open_turns", not_theirs)
    with capture_logs() as said:
        await reconciler.once()
    assert await status(desk, lost) == ("failed", "run_vanished")
    assert ("open_turns_not_listed", "aaa") in {(line["event"], line.get("where")) for line in said}
