"""Nothing is left behind: turns whose run is gone, and queues that nobody admits."""

import asyncio
import time

import pytest
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowHandle

from perdure.contracts.ids import turn_workflow_id
from perdure.contracts.turns import TurnAddress
from perdure.core.turns import OnBusy
from perdure.graph.registry import TOPOLOGIES
from perdure.store.database import Database
from perdure.temporal.workflow_client import Doorbell
from perdure.worker.reconcile import Reconciler
from perdure.worker.telemetry import traces_of
from tests.desk import Desk, until
from tests.doubles.moody_tracer import MoodyTracer
from tests.doubles.spoken import Line
from tests.integration.lost_turns import aged, begun, found, status


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
    while (described := await found(temporal, waiting)) is None:  # rung after the commit that failed the other
        assert time.monotonic() - began < 30
        await asyncio.sleep(0.1)
    stop.set()
    running.cancel()
    assert await status(desk, address) == ("failed", "run_terminated")
    assert await status(desk, waiting) == ("accepted", None)
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


async def test_a_turn_that_the_reconciler_ends_has_its_trace(desk: Desk, relay: Database, temporal: Client) -> None:
    address = await begun(desk)
    await temporal.get_workflow_handle(turn_workflow_id(address.turn_id)).terminate()
    await aged(desk, address)
    tracer = MoodyTracer()
    traces = traces_of(tracer, relay, TOPOLOGIES)
    try:
        ending = Reconciler(relay, temporal, Doorbell(temporal, relay), traces.ended)
        await asyncio.gather(*(ending.once() for _ in range(3)))
        await traces.settled()
        await until(lambda: bool(spans(tracer, address)))
    finally:
        await traces.close()
    assert spans(tracer, address) == [("invoke_agent desk", "run_terminated")], "told of once"


def spans(tracer: MoodyTracer, address: TurnAddress) -> list[tuple[str, str]]:
    """Names and errors of what came of a turn."""
    return [(each.name, each.error) for each in tracer.spans if each.attributes["perdure.trace_id"] == address.turn_id]


async def test_a_run_that_lives_is_young_is_to_be_delivered_or_cannot_be_asked_about_is_left_alone(
    desk: Desk, relay: Database, reconciler: Reconciler, temporal: Client
) -> None:
    alive, young, undelivered = await begun(desk), (await desk.start(Line("hi")))[0], (await desk.start(Line("hi")))[0]
    await desk.write("DELETE FROM outbox WHERE turn_id = $1", young.turn_id)
    await aged(desk, alive, undelivered)
    elsewhere = await Client.connect(temporal.service_client.config.target_host, namespace="misspelt")
    for looking in (reconciler, Reconciler(relay, elsewhere, Doorbell(elsewhere, relay))):
        await looking.once()
        for address in (alive, young, undelivered):
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


async def test_many_lost_turns_of_many_conversations_are_finished_in_one_pass(
    desk: Desk, reconciler: Reconciler, temporal: Client
) -> None:
    turns = [(await desk.start(Line(str(n))))[0] for n in range(12)]
    await desk.write("DELETE FROM outbox WHERE turn_id = ANY($1)", [address.turn_id for address in turns])
    await aged(desk, *turns)
    assert await reconciler.once() == len(turns)
    assert {(await status(desk, address))[1] for address in turns} == {"run_vanished"}


@pytest.mark.parametrize(("few", "listed_at"), [(4, 0), (3, -1)], ids=["those that wait", "those that ended"])
async def test_of_many_paused_turns_only_those_without_a_waiting_run_are_asked_about(
    desk: Desk, reconciler: Reconciler, temporal: Client, monkeypatch: pytest.MonkeyPatch, few: int, listed_at: int
) -> None:
    """Asked one by one, thousands of paused turns take all of the server's time."""
    paused = [(await desk.start(Line("hi")))[0] for _ in range(5)]
    ids = [turn_workflow_id(address.turn_id) for address in paused]
    stranger = f"turn:of somebody else's making, {few}"
    for workflow_id in (*ids, stranger):  # nobody serves the queue: a run that only waits
        await temporal.start_workflow("TurnWait", {}, id=workflow_id, task_queue=desk.routing.turns)
    turn_ids = [address.turn_id for address in paused]
    await desk.write("DELETE FROM outbox WHERE turn_id = ANY($1)", turn_ids)
    await desk.write("UPDATE turns SET status = 'awaiting_approval' WHERE id = ANY($1)", turn_ids)
    await aged(desk, *paused)
    for workflow_id in (stranger, ids[0]):
        await temporal.get_workflow_handle(workflow_id).terminate("by hand")
    query, began = "WorkflowType = 'TurnWait' AND ExecutionStatus = 'Running'", time.monotonic()
    while {run.id async for run in temporal.list_workflows(query)}.intersection(ids) != set(ids[1:]):
        assert time.monotonic() - began < 30, "Temporal's list lags"
        await asyncio.sleep(0.1)
    asked: list[str] = []
    describe = WorkflowHandle.describe

    async def counted(handle: WorkflowHandle[object, object]) -> WorkflowExecutionDescription:
        asked.append(handle.id)
        return await describe(handle)

    monkeypatch.setattr("perdure.worker.reconcile.FEW", few)
    monkeypatch.setattr("perdure.worker.reconcile.LISTED_AT", listed_at)
    monkeypatch.setattr(WorkflowHandle, "describe", counted)
    while (await status(desk, paused[0]))[0] != "failed":
        assert time.monotonic() - began < 60, "Temporal's list lags, or is not read"
        await reconciler.once()
        await asyncio.sleep(0.1)
    assert await status(desk, paused[0]) == ("failed", "run_terminated")
    assert [await status(desk, address) for address in paused[1:]] == [("awaiting_approval", None)] * 4
    assert set(asked).intersection(ids) == {ids[0]}
    for workflow_id in ids[1:]:
        await temporal.get_workflow_handle(workflow_id).terminate()
