"""The reconciler: lost runs, queued turns, lost wake signals, unread decisions, early stops, statements that fail."""

import asyncio
from collections import Counter
from itertools import pairwise
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.apps.bootstrap import _refuse_lost_turns
from perdure.contracts.ids import turn_workflow_id
from perdure.contracts.turns import TurnAddress, TurnStatus
from perdure.core.approvals.decisions import Decision
from perdure.core.turns import OnBusy
from perdure.graph.registry import TOPOLOGIES
from perdure.store.database import Connection, Database
from perdure.store.turns.reconcile import OpenTurn, open_turns
from perdure.temporal.workflow_client import Notifier
from perdure.worker import reconcile
from perdure.worker.reconcile import Reconciler
from perdure.worker.telemetry import traces_of
from tests.conftest import Urls, as_owner
from tests.doubles.faulty_tracer import FaultyTracer
from tests.doubles.message_script import Line
from tests.eventually import until
from tests.harness import Harness
from tests.integration.conftest import in_transaction


async def begun(harness: Harness) -> TurnAddress:
    """A turn whose workflow runs on a queue without workers."""
    address, started = await harness.start(Line("hi"))
    assert started.note is not None and await harness.deps.notifier.deliver_soon(started.note)
    return address


async def status(harness: Harness, address: TurnAddress) -> tuple[str, str | None]:
    row = (await harness.rows("SELECT status, problem FROM turns WHERE id = $1", address.turn_id))[0]
    return row["status"], (row["problem"] or {}).get("code")


async def workflow_or_none(temporal: Client, address: TurnAddress) -> WorkflowExecutionDescription | None:
    try:
        return await temporal.get_workflow_handle(turn_workflow_id(address.turn_id)).describe()
    except RPCError as error:
        assert error.status is RPCStatusCode.NOT_FOUND
        return None


@pytest.fixture(autouse=True)
async def no_open_turns(harness: Harness) -> None:
    """No turn of another test is looked at."""
    await stopped(harness)


async def stopped(harness: Harness) -> None:
    await harness.write("UPDATE turns SET status = 'stopped', ended_at = now() WHERE ended_at IS NULL")


async def lost(harness: Harness) -> TurnAddress:
    address, _ = await harness.start(Line("lost"))
    await undelivered(harness, address)
    await harness.make_older(address)
    return address


async def terminated(harness: Harness, temporal: Client) -> TurnAddress:
    """A turn of a minute ago whose run has been ended by hand."""
    address = await begun(harness)
    await temporal.get_workflow_handle(turn_workflow_id(address.turn_id)).terminate()
    await harness.make_older(address)
    return address


async def undelivered(harness: Harness, address: TurnAddress) -> None:
    await harness.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)


async def stranded(harness: Harness) -> tuple[TurnAddress, TurnAddress]:
    first, _ = await harness.start(Line("one"))
    given = {"conversation_id": first.conversation_id, "on_busy": OnBusy.QUEUE}
    second, third = [(await harness.start(Line(text), **given))[0] for text in ("two", "three")]  # type: ignore[arg-type]
    await harness.write("UPDATE turns SET status = 'failed', ended_at = now() WHERE id = $1", first.turn_id)
    await harness.write("UPDATE conversations SET active_turn_id = NULL WHERE id = $1", first.conversation_id)
    return second, third


async def test_a_terminated_turn_fails_and_the_next_one_starts(
    harness: Harness, reconciler: Reconciler, temporal: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reconcile.SETTLING_SECONDS + 2 * reconcile.INTERVAL_SECONDS < 30
    monkeypatch.setattr(reconcile, "INTERVAL_SECONDS", 0.2)
    address = await begun(harness)
    await harness.make_older(address)
    waiting, _ = await harness.start(Line("next"), conversation_id=address.conversation_id, on_busy=OnBusy.QUEUE)
    stop = asyncio.Event()
    running = asyncio.create_task(reconciler.run(stop))
    await temporal.get_workflow_handle(turn_workflow_id(address.turn_id)).terminate("by hand")
    described = await until(
        lambda: workflow_or_none(temporal, waiting)
    )  # signaled after the commit that failed the other
    stop.set()
    running.cancel()
    assert await status(harness, address) == ("failed", "run_terminated")
    assert await status(harness, waiting) == ("accepted", None)
    assert described is not None and described.task_queue == harness.routing.turns
    assert (await harness.kinds(address.turn_id))[-2:] == ["workflow.error", "done"]


@pytest.mark.parametrize("how", ["terminated", "vanished"])
async def test_each_lost_turn_ends_once(harness: Harness, reconciler: Reconciler, temporal: Client, how: str) -> None:
    turns = [await (lost(harness) if how == "vanished" else terminated(harness, temporal)) for _ in range(3)]
    assert sum(await asyncio.gather(*(reconciler.run_pass() for _ in range(3)))) >= len(turns)
    for address in turns:
        assert await status(harness, address) == ("failed", f"run_{how}")
        assert (await harness.kinds(address.turn_id)).count("done") == 1


async def test_a_turn_the_reconciler_ends_has_its_trace(harness: Harness, relay: Database, temporal: Client) -> None:
    address = await terminated(harness, temporal)
    tracer = FaultyTracer()
    traces = traces_of(tracer, relay, TOPOLOGIES)
    try:
        ending = Reconciler(relay, temporal, Notifier(temporal, relay), traces.ended)
        await asyncio.gather(*(ending.run_pass() for _ in range(3)))
        await traces.settled()
        await until(lambda: bool(spans(tracer, address)))
    finally:
        await traces.close()
    assert spans(tracer, address) == [("invoke_agent desk", "run_terminated")], "told of once"


def spans(tracer: FaultyTracer, address: TurnAddress) -> list[tuple[str, str]]:
    """Names and errors of a turn's spans."""
    return [(each.name, each.error) for each in tracer.spans if each.attributes["perdure.trace_id"] == address.turn_id]


async def test_a_run_that_is_alive_young_undelivered_or_unknown_is_left_alone(
    harness: Harness, relay: Database, reconciler: Reconciler, temporal: Client
) -> None:
    alive = await begun(harness)
    young, waits = [(await harness.start(Line("hi")))[0] for _ in range(2)]
    await undelivered(harness, young)
    await harness.make_older(alive, waits)
    elsewhere = await Client.connect(temporal.service_client.config.target_host, namespace="misspelt")
    for looking in (reconciler, Reconciler(relay, elsewhere, Notifier(elsewhere, relay))):
        await looking.run_pass()
        for address in (alive, young, waits):
            assert await status(harness, address) == ("accepted", None)


async def test_a_queued_turn_not_admitted_is_started_and_not_lost(harness: Harness, reconciler: Reconciler) -> None:
    second, third = await stranded(harness)
    await harness.make_older(second, third)
    for _ in range(2):
        await reconciler.run_pass()
        assert await status(harness, second) == ("accepted", None)
        assert await status(harness, third) == ("queued", None)
    starts = await harness.rows("SELECT turn_id FROM outbox WHERE kind = 'start' AND turn_id = $1", second.turn_id)
    assert len(starts) == 1
    assert await harness.kinds(second.turn_id) == ["queued", "ready"]
    row = (await harness.rows("SELECT through_seq, message_id FROM turns WHERE id = $1", second.turn_id))[0]
    assert await harness.value("SELECT seq FROM messages WHERE id = $1", row["message_id"]) == row["through_seq"] + 1


@pytest.mark.parametrize(("few", "listed_at"), [(4, 0), (3, -1)], ids=["those that wait", "those that ended"])
async def test_of_many_paused_turns_only_those_without_a_waiting_run_are_asked_about(
    harness: Harness,
    reconciler: Reconciler,
    temporal: Client,
    monkeypatch: pytest.MonkeyPatch,
    few: int,
    listed_at: int,
) -> None:
    """Asked one by one, thousands of paused turns take all of the server's time."""
    paused = [await lost(harness) for _ in range(5)]
    ids = [turn_workflow_id(address.turn_id) for address in paused]
    stranger = f"turn:of somebody else's making, {few}"
    for workflow_id in (*ids, stranger):  # no worker serves the queue: a run that only waits
        await temporal.start_workflow("TurnWait", {}, id=workflow_id, task_queue=harness.routing.turns)
    turn_ids = [address.turn_id for address in paused]
    await harness.write("UPDATE turns SET status = 'awaiting_approval' WHERE id = ANY($1)", turn_ids)
    for workflow_id in (stranger, ids[0]):
        await temporal.get_workflow_handle(workflow_id).terminate("by hand")
    query = "WorkflowType = 'TurnWait' AND ExecutionStatus = 'Running'"

    async def listed() -> bool:
        return {run.id async for run in temporal.list_workflows(query)}.intersection(ids) == set(ids[1:])

    async def reconciled() -> bool:
        await reconciler.run_pass()
        return (await status(harness, paused[0]))[0] == "failed"

    await until(listed)  # Temporal's list lags
    asked: list[str] = []
    describe = WorkflowHandle.describe

    async def counted(handle: WorkflowHandle[object, object]) -> WorkflowExecutionDescription:
        asked.append(handle.id)
        return await describe(handle)

    monkeypatch.setattr("perdure.worker.reconcile.MAX_CHECKED_ONE_BY_ONE", few)
    monkeypatch.setattr("perdure.worker.reconcile.LISTED_AT", listed_at)
    monkeypatch.setattr(WorkflowHandle, "describe", counted)
    await until(reconciled, seconds=60)
    assert await status(harness, paused[0]) == ("failed", "run_terminated")
    assert [await status(harness, address) for address in paused[1:]] == [("awaiting_approval", None)] * 4
    assert set(asked).intersection(ids) == {ids[0]}
    for workflow_id in ids[1:]:
        await temporal.get_workflow_handle(workflow_id).terminate()


async def signals(harness: Harness, address: TurnAddress, kind: str = "ring") -> int:
    """Bells of this kind for the turn in the outbox."""
    return len(await harness.rows("SELECT FROM outbox WHERE turn_id = $1 AND kind = $2", address.turn_id, kind))


async def looked(harness: Harness, reconciler: Reconciler, address: TurnAddress) -> None:
    """A pass without an undelivered wake signal."""
    await undelivered(harness, address)
    await reconciler.run_pass()


async def test_a_decided_turn_whose_signal_was_lost_is_signaled_again(harness: Harness, reconciler: Reconciler) -> None:
    address = await harness.plan(("pay", {}), ("post", {}))
    first, second = await harness.open(address, "t1.0", "t1.1")
    await harness.decide(first.request_id, Decision.REJECT, comment="no")
    await looked(harness, reconciler, address)
    assert await signals(harness, address) == 0, "one of the round is still open, and nothing may start"
    await harness.decide(second.request_id)
    await looked(harness, reconciler, address)
    await reconciler.run_pass()
    assert await signals(harness, address) == 1, "rung once, not at every pass"


async def test_a_call_that_can_start_is_signaled_while_others_wait(harness: Harness, reconciler: Reconciler) -> None:
    address = await harness.plan(("pay", {}), ("post", {}))
    first, _ = await harness.open(address, "t1.0", "t1.1")
    await harness.decide(first.request_id)
    await looked(harness, reconciler, address)
    await reconciler.run_pass()
    assert await signals(harness, address) == 1
    await undelivered(harness, address)
    await harness.run_tool(address)
    rung_then = "UPDATE turns SET status = $2, rung_at = now() - interval '1 hour' WHERE id = $1"
    await harness.write(rung_then, address.turn_id, TurnStatus.AWAITING_APPROVAL.value)
    await reconciler.run_pass()
    assert await signals(harness, address) == 0, "it has run; the other waits"


async def test_a_call_that_waits_for_a_worker_hides_no_request_and_no_lost_signal(
    harness: Harness, reconciler: Reconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = await harness.plan(("pay", {}), ("post", {}))
    first, second = await harness.open(address, "t1.0", "t1.1")
    await harness.decide(first.request_id)
    monkeypatch.setattr(harness.deps.toolbox, "_tools", {})
    for call_id, status, signaled in (("t1.0", "awaiting_approval", 0), ("t1.0", "running", 1), ("t1.1", "running", 0)):
        with pytest.raises(ApplicationError):
            await harness.run_tool(address, call_id)
        (turn,) = await harness.rows("SELECT status, waiting FROM turns WHERE id = $1", address.turn_id)
        assert (turn["status"], turn["waiting"] is None) == (status, status == "running")
        await looked(harness, reconciler, address)
        assert await signals(harness, address) == signaled
        if status == "awaiting_approval":
            await harness.decide(second.request_id)
        await harness.write("UPDATE turns SET rung_at = NULL WHERE id = $1", address.turn_id)


async def test_a_decided_turn_that_never_continues_is_signaled_rarely(harness: Harness, reconciler: Reconciler) -> None:
    address, request = await harness.request_approval()
    await harness.decide(request.request_id)
    rung_at = []
    with capture_logs() as said:
        for minute in range(80):
            await looked(harness, reconciler, address)
            if await signals(harness, address):
                rung_at.append(minute)
            for change in ("turns SET rung_at = rung_at", "approvals SET decided_at = decided_at"):
                which = "id" if change.startswith("turns") else "turn_id"
                await harness.write(f"UPDATE {change} - interval '61 seconds' WHERE {which} = $1", address.turn_id)
    gaps = [after - before for before, after in pairwise(rung_at)]
    assert rung_at[:2] == [0, 1], "the first ones come soon"
    assert gaps == sorted(gaps)
    assert gaps[-3:] == [15, 15, 15], "in the end each quarter of an hour"
    told = [line for line in said if line["event"] == "decided_turn_still_waits"]
    assert [(line["subject"], line["log_level"]) for line in told] == [(address.turn_id, "error")]


async def test_a_turn_signaled_in_vain_gets_one_for_its_next_decision(harness: Harness, reconciler: Reconciler) -> None:
    address, request = await harness.request_approval()
    await harness.decide(request.request_id)
    earlier = "UPDATE approvals SET decided_at = decided_at - interval '1 day' WHERE turn_id = $1"
    await harness.write(earlier, address.turn_id)
    await harness.write("UPDATE turns SET rung_at = now() - interval '2 minutes' WHERE id = $1", address.turn_id)
    await looked(harness, reconciler, address)
    assert await signals(harness, address) == 0, "it has been rung for this one, long after it"
    await harness.write("UPDATE approvals SET decided_at = now() WHERE turn_id = $1", address.turn_id)
    await reconciler.run_pass()
    assert await signals(harness, address) == 1


@pytest.mark.parametrize(
    ("waits_for", "change"),
    [("a decision", "approvals SET expires_at = now()"), ("an effect", "tool_calls SET state = 'done'")],
)
async def test_an_overdue_turn_and_one_whose_effect_was_settled_are_signaled(
    harness: Harness, reconciler: Reconciler, waits_for: str, change: str
) -> None:
    if waits_for == "an effect":
        address = await harness.approved(("post", {"mode": "break"}))
        await harness.run_tool(address)
        await harness.write("UPDATE turns SET status = 'awaiting_approval' WHERE id = $1", address.turn_id)
    else:
        address, _ = await harness.request_approval()
    await looked(harness, reconciler, address)
    assert await signals(harness, address) == 0
    await harness.write(f"UPDATE {change} WHERE turn_id = $1", address.turn_id)
    await reconciler.run_pass()
    assert await signals(harness, address) == 1


async def test_a_stop_before_the_workflow_stops_it(harness: Harness, reconciler: Reconciler, temporal: Client) -> None:
    """The stop signal finds no workflow; then the start is delivered as it was stored, without the stop."""
    address, started = await harness.start(Line("hi"))
    note = await harness.stop(address.turn_id)
    assert note is not None and await harness.deps.notifier.deliver_soon(note)
    assert started.note is not None and await harness.deps.notifier.deliver_soon(started.note)
    await reconciler.run_pass()
    assert await signals(harness, address, "stop") == 0, "it has only just been asked to"
    statement = "UPDATE turns SET stop_requested_at = stop_requested_at - interval '11 seconds' WHERE id = $1"
    await harness.write(statement, address.turn_id)
    for _ in range(3):
        await reconciler.run_pass()
        assert await signals(harness, address, "stop") == 1, "rung once, not at every pass"
    await looked(harness, reconciler, address)
    assert await signals(harness, address, "stop") == 0
    await harness.write("UPDATE turns SET rung_at = now() - interval '61 seconds' WHERE id = $1", address.turn_id)
    await reconciler.run_pass()
    assert await signals(harness, address, "stop") == 1
    await temporal.get_workflow_handle(turn_workflow_id(address.turn_id)).terminate()


STEPS = {
    "wake_stopped": "stops_not_signaled", "wake_decided": "decisions_not_signaled",
    "start_stranded": "stranded_turns_not_started", "forget_old": "old_keys_not_deleted",
    "fall_back": "requests_not_reassigned", "escalate_all_overdue": "deadlines_not_escalated",
}  # fmt: skip


@pytest.mark.parametrize("broken", list(STEPS))
async def test_a_statement_that_fails_delays_no_other_and_logs_once(
    harness: Harness, reconciler: Reconciler, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    second, gone = (await stranded(harness))[0], await lost(harness)
    await old_key(harness)

    async def fails(tx: Connection, *_: str) -> None:
        await tx.execute("SELECT 1 / 0")

    monkeypatch.setattr(reconcile, broken, fails)
    with capture_logs() as said:
        for _ in range(3):
            await reconciler.run_pass()
    assert await status(harness, gone) == ("failed", "run_vanished")
    assert (await status(harness, second))[0] == ("queued" if broken == "start_stranded" else "accepted")
    assert await harness.value("SELECT count(*) FROM idempotency") == (broken == "forget_old")
    assert Counter(line["event"] for line in said if line.get("error")) == {STEPS[broken]: 1}
    monkeypatch.undo()
    with capture_logs() as said:
        await reconciler.run_pass()
    assert [line["event"] for line in said] == [f"{STEPS[broken]}_resolved"]


async def old_key(harness: Harness) -> None:
    """A client's key of the day before yesterday."""
    await harness.write(
        "INSERT INTO idempotency (tenant_id, user_id, route, key, body_digest, status, answer, created_at) "
        "VALUES ('local', $1, 'r', 'k', 'd', 200, '{}', now() - interval '25 hours') ON CONFLICT DO NOTHING",
        harness.people["requester"].user_id,
    )


async def test_a_tenant_that_cannot_be_read_does_not_stop_those_behind_it(
    harness: Harness, reconciler: Reconciler, urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with as_owner(urls.owner) as owner:
        await owner.execute("INSERT INTO tenants (tenant_id) VALUES ('aaa') ON CONFLICT DO NOTHING")
    gone = await lost(harness)

    async def not_theirs(tx: Connection, seconds: float, most_paused: int | None) -> list[OpenTurn]:
        if await tx.fetchval("SELECT current_setting('perdure.tenant')") == "aaa":
            await tx.execute("SELECT 1 / 0")
        return await open_turns(tx, seconds, most_paused)

    monkeypatch.setattr(reconcile, "open_turns", not_theirs)
    with capture_logs() as said:
        await reconciler.run_pass()
    assert await status(harness, gone) == ("failed", "run_vanished")
    assert ("open_turns_not_listed", "aaa") in {(line["event"], line.get("subject")) for line in said}


async def test_without_a_list_of_waiting_runs_no_waiting_turn_counts_as_lost(
    harness: Harness, reconciler: Reconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused, gone = await lost(harness), await lost(harness)
    await harness.write("UPDATE turns SET status = 'awaiting_approval' WHERE id = $1", paused.turn_id)
    exhausted = Mock(side_effect=RPCError("too many lists", RPCStatusCode.RESOURCE_EXHAUSTED, b""))
    monkeypatch.setattr("perdure.worker.reconcile.MAX_CHECKED_ONE_BY_ONE", 0)
    monkeypatch.setattr("perdure.worker.reconcile.LISTED_AT", 0)
    with monkeypatch.context() as broken:
        broken.setattr(Client, "list_workflows", exhausted)
        with capture_logs() as said:
            await reconciler.run_pass()
    assert await status(harness, paused) == ("awaiting_approval", None)
    assert await status(harness, gone) == ("failed", "run_vanished")
    assert "waiting_runs_not_listed" in {line["event"] for line in said}


@pytest.mark.parametrize(("most", "read"), [(0, 0), (2, 2), (None, 3)])
async def test_the_oldest_paused_turns_are_read_as_many_as_asked(harness: Harness, most: int | None, read: int) -> None:
    paused, going = [(await lost(harness)).turn_id for _ in range(3)], await lost(harness)
    await harness.write("UPDATE turns SET status = 'awaiting_approval' WHERE id = ANY($1)", paused)
    turns = [turn.address.turn_id for turn in await in_transaction(harness.db, open_turns, 1.0, most)]
    assert going.turn_id in turns and [each for each in turns if each in paused] == paused[:read]


async def test_a_start_without_histories_is_refused_while_a_turn_is_open(harness: Harness, urls: Urls) -> None:
    await lost(harness)
    owner = await Database.connect(urls.owner, max_connections=1)
    with pytest.raises(SystemExit):
        await _refuse_lost_turns(owner, "/h/temporal.db", 2)
    await _refuse_lost_turns(owner, "/h/temporal.db", 1)
    await stopped(harness)
    await _refuse_lost_turns(owner, "/h/temporal.db", 0)
    await owner.close()
