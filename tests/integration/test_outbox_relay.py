"""Wake-ups: durable with what made them necessary, delivered by their writer or by the relay, harmless when doubled."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from structlog.testing import capture_logs
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from perdure.contracts.ids import turn_workflow_id
from perdure.contracts.turns import FinishRequest, TurnStatus
from perdure.core.turns import OnBusy
from perdure.store.database import Database, new_id
from perdure.store.delivery import outbox
from perdure.store.delivery.outbox import Note, Wake
from perdure.store.turns.finish import finish
from perdure.store.turns.start import request_stop
from perdure.temporal.workflow_client import TASK_TIMEOUT, Notifier
from perdure.worker import outbox as loop
from perdure.worker.outbox import FOR_GOOD, STARTS, deliver_due, run_relay
from tests.conftest import Urls
from tests.doubles.spoken import Line
from tests.harness import Harness, until

STATUS = "SELECT status FROM turns WHERE id = $1"


@pytest.fixture(autouse=True)
async def nothing_due(relay: Database) -> None:
    await relay.pool.execute("DELETE FROM outbox")


class Heard(Notifier):
    """A doorbell that only counts, and fails as often as it is told."""

    def __init__(
        self, client: Client, db: Database, fails: int = 0, status: RPCStatusCode = RPCStatusCode.UNAVAILABLE
    ) -> None:
        super().__init__(client, db)
        self.fails, self.status, self.rung = fails, status, Counter[tuple[Wake, str]]()

    async def deliver(self, note: Note) -> None:
        if self.fails:
            self.fails -= 1
            raise RPCError("away", self.status, b"")
        self.rung[note.kind, note.turn_id] += 1


async def due(relay: Database, doorbell: Notifier) -> int:
    """Time passes, and the relay looks."""
    await relay.pool.execute("UPDATE outbox SET due_at = now() - interval '1 ms'")
    return await deliver_due(relay, doorbell)


async def put(harness: Harness, kind: Wake, *turn_ids: str) -> list[Note]:
    async with harness.db.transaction("local") as tx:
        return [await outbox.put(tx, "local", kind, turn_id) for turn_id in turn_ids]


async def left(relay: Database) -> int:
    """Wake-ups that nobody has delivered."""
    return int(await relay.pool.fetchval("SELECT count(*) FROM outbox"))


async def test_a_turn_whose_starter_died_is_started_by_the_relay(
    harness: Harness, relay: Database, temporal: Client
) -> None:
    address, started = await harness.start(Line("hi"))
    assert started.note is not None and not await Heard(temporal, harness.db, fails=1).deliver_soon(started.note)
    assert await left(relay) == 1
    assert await deliver_due(relay, harness.deps.doorbell) == 0, "its writer has a head start"
    stop = asyncio.Event()
    running = asyncio.create_task(run_relay(relay, Notifier(temporal, relay), stop))
    handle = temporal.get_workflow_handle(turn_workflow_id(address.turn_id))
    for _ in range(600):
        await asyncio.sleep(0.05)
        if not await left(relay):
            break
    stop.set()
    await running
    described = await handle.describe()
    assert (described.status, described.task_queue) == (WorkflowExecutionStatus.RUNNING, harness.routing.turns)
    assert described.typed_search_attributes.search_attributes
    config = described.raw_description.execution_config
    assert config.default_workflow_task_timeout.ToTimedelta() == TASK_TIMEOUT
    await handle.terminate()


async def test_a_start_delivered_twice_starts_once_and_no_more(
    harness: Harness, relay: Database, temporal: Client
) -> None:
    address, started = await harness.start(Line("hi"))
    assert started.note is not None
    for _ in range(3):
        assert await harness.deps.doorbell.deliver_soon(started.note)
    handle = temporal.get_workflow_handle(turn_workflow_id(address.turn_id))
    first_run = (await handle.describe()).run_id
    await handle.terminate()
    await harness.deps.doorbell.deliver(started.note)
    assert (await handle.describe()).run_id == first_run, "a terminated turn is for the reconciler, not for a new run"


async def test_what_wakes_a_turn_that_is_not_there_does_nothing(
    harness: Harness, relay: Database, temporal: Client
) -> None:
    address, started = await harness.start(Line("hi"))
    assert started.note is not None
    for kind in (Wake.RING, Wake.STOP):
        (note,) = await put(harness, kind, address.turn_id)
        assert await harness.deps.doorbell.deliver_soon(note)
    assert await left(relay) == 1, "the start alone"
    async with harness.db.transaction("local") as tx:
        await finish(tx, FinishRequest(address=address, status=TurnStatus.STOPPED))
    await harness.deps.doorbell.deliver(replace(started.note, begins=None))  # as the relay has it
    await harness.deps.doorbell.deliver(Note(0, "local", Wake.START, new_id()))
    with pytest.raises(RPCError):
        await temporal.get_workflow_handle(turn_workflow_id(address.turn_id)).describe()


@pytest.mark.parametrize("kind", list(Wake))
async def test_a_wake_up_stays_without_its_namespace(
    harness: Harness, relay: Database, temporal: Client, kind: Wake
) -> None:
    address, _ = await harness.start(Line("hi"))
    if kind is not Wake.START:
        await put(harness, kind, address.turn_id)
    await relay.pool.execute("DELETE FROM outbox WHERE kind <> $1", kind.value)
    target = temporal.service_client.config.target_host
    elsewhere = await Client.connect(target, namespace="misspelt", data_converter=temporal.data_converter)
    assert await due(relay, Notifier(elsewhere, relay)) == 0
    assert await left(relay) == 1


async def test_an_outage_of_postgres_is_said_once_and_so_is_its_end(
    urls: Urls, relay: Database, temporal: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "OUTAGE_SECONDS", 0.01)
    away = await Database.connect(urls.relay, most=1)
    stop = asyncio.Event()
    open_pool, closed_pool = relay.pool, away.pool
    await away.close()
    with capture_logs() as said:
        running = asyncio.create_task(run_relay(away, Heard(temporal, relay), stop))
        for heard, pool in enumerate((closed_pool, open_pool, closed_pool, open_pool), start=1):
            away.pool = pool
            await until(lambda heard=heard: len(said) >= heard)  # type: ignore[misc]
            await asyncio.sleep(0.1)  # time to say it again
        stop.set()
        await running
    began, ended = "relay_waits_for_postgres", "relay_waits_for_postgres_no_more"
    assert [line["event"] for line in said] == [began, ended, began, ended]
    assert said[0]["error"] == "InterfaceError"


async def test_two_relays_side_by_side_deliver_each_wake_up_once(
    harness: Harness, relay: Database, temporal: Client
) -> None:
    notes = await put(harness, Wake.RING, *(new_id() for _ in range(120)))
    heard = Heard(temporal, relay)
    await relay.pool.execute("UPDATE outbox SET due_at = now() - interval '1 ms'")
    for _ in range(3):
        await asyncio.gather(*(deliver_due(relay, heard) for _ in range(4)))
    assert await left(relay) == 0
    assert heard.rung == Counter((Wake.RING, note.turn_id) for note in notes)


async def test_what_could_not_be_delivered_is_due_again(harness: Harness, relay: Database, temporal: Client) -> None:
    await put(harness, Wake.RING, new_id(), new_id(), new_id())
    heard = Heard(temporal, relay, fails=2)
    assert await due(relay, heard) == 1, "one that fails does not hold up the others"
    assert await left(relay) == 2
    assert await deliver_due(relay, heard) == 0, "not due yet"
    assert await due(relay, heard) == 2
    assert await left(relay) == 0


async def test_a_turn_that_temporal_refuses_fails_after_tries(
    harness: Harness, relay: Database, temporal: Client
) -> None:
    address, _ = await harness.start(Line("hi"))
    no_queue = "UPDATE turns SET routing = routing || jsonb_build_object('turns', repeat('q', 1001)) WHERE id = $1"
    await harness.write(no_queue, address.turn_id)  # a name that Temporal does not take
    waiting, _ = await harness.start(Line("next"), conversation_id=address.conversation_id, on_busy=OnBusy.QUEUE)
    doorbell = Notifier(temporal, relay)
    for _ in range(STARTS - 1):
        assert await due(relay, doorbell) == 0
        assert await harness.value(STATUS, address.turn_id) == "accepted"
    assert await due(relay, doorbell) == 1
    (row,) = await harness.rows("SELECT status, problem FROM turns WHERE id = $1", address.turn_id)
    assert (row["status"], row["problem"]["code"]) == ("failed", "start_refused")
    assert len(row["problem"]["message"]) <= 300
    assert (await harness.kinds(address.turn_id))[-2:] == ["workflow.error", "done"]
    assert not await harness.rows("SELECT id FROM outbox WHERE turn_id = $1", address.turn_id)
    handle = temporal.get_workflow_handle(turn_workflow_id(waiting.turn_id))
    assert (await handle.describe()).status is WorkflowExecutionStatus.RUNNING, "the next turn has begun"
    await handle.terminate()


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (Wake.START, RPCStatusCode.UNAVAILABLE),
        (Wake.RING, RPCStatusCode.INVALID_ARGUMENT),  # a bell that is refused ends nothing
        *(
            pytest.param(Wake.START, status, marks=pytest.mark.soak)
            for status in {*RPCStatusCode} - {*FOR_GOOD, RPCStatusCode.OK, RPCStatusCode.UNAVAILABLE}
        ),
    ],
)
async def test_a_start_that_may_succeed_later_and_any_bell_is_tried_for_ever(
    harness: Harness, relay: Database, temporal: Client, kind: Wake, status: RPCStatusCode
) -> None:
    address, _ = await harness.start(Line("hi"))
    await relay.pool.execute("UPDATE outbox SET kind = $1", kind.value)
    heard = Heard(temporal, relay, fails=3 * STARTS, status=status)
    for _ in range(3 * STARTS):
        assert await due(relay, heard) == 0
    assert await harness.value(STATUS, address.turn_id) == "accepted"
    assert await due(relay, heard) == 1
    assert heard.rung == Counter({(kind, address.turn_id): 1})


async def test_a_transaction_that_is_rolled_back_leaves_no_wake_up(harness: Harness, relay: Database) -> None:
    address, _ = await harness.start(Line("hi"))
    await relay.pool.execute("DELETE FROM outbox")
    with pytest.raises(ZeroDivisionError):
        async with harness.db.transaction("local") as tx:
            await request_stop(tx, address.turn_id, harness.people["requester"].user_id)
            raise ZeroDivisionError
    assert await left(relay) == 0
    assert await harness.value("SELECT stop_requested_at FROM turns WHERE id = $1", address.turn_id) is None
