"""What reaches a running turn: wake signals, any number from any sender at any time, and messages.

Signals can cost time, but never an effect or the run. A stop's signal only makes the turn read its record, which
confirms the stop before anything is cancelled. A message is heard where the turn next asks its model, or it gives way.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner

from perdure.contracts.activities import WAKE
from perdure.contracts.errors import InvariantBroken, PerdureError, UpstreamUnavailable
from perdure.contracts.ids import approval_id
from perdure.contracts.turns import StopRequest, TurnAddress, TurnStatus, WakeSignal
from perdure.core.turns import OnBusy
from perdure.store.database import Connection
from perdure.store.turns.finish import stop_requested
from perdure.temporal.workflow_client import is_workflow_missing
from tests.acceptance.machine import Others
from tests.doubles.broken_inside import Breaks, Brief, broken_inside
from tests.doubles.message_script import Line
from tests.eventually import until
from tests.harness import gathered
from tests.replay.recording import run_of
from tests.replay.replaying import Replaying
from tests.replay.stopping import CONFIRM, in_a_call, silent, until_called
from tests.scale import PATIENCE_SECONDS, sized
from tests.served_turns import DONE, PAUSED, PAY, Served

pytestmark = [
    pytest.mark.usefixtures("released_target"),
    # A signal that meets a continue-as-new makes the server give the task again, signal included; the instance of the
    # first try is thrown away with a handler that it had not begun.
    pytest.mark.filterwarnings("ignore:.*run_signal:pytest.PytestUnraisableExceptionWarning"),
]

TURNS = sized(20, 1)
DOUBLED, LATE, FORGERIES = sized(1_000, 200), sized(100, 20), sized(100, 100)
"""Signals to each of them."""
GARBAGE: list[list[Any]] = [[], [None], ["stop"], [7], [["stop"]], [{"request_id": "x"}], [{"kind": 5}], [{}, {}, {}]]
"""A record that cannot be read."""
FORGED: list[Any] = [
    {"kind": "approved", "request_id": "x", "state": "approved"},
    {"kind": "request", "request_id": "01234567-0000-7000-8000-000000000000", "verdict": "approve"},
    {"kind": "", "request_id": "x" * 900}, {"kind": "request", "request_id": "stop"},
    {"kind": ["request"], "request_id": {"args": {"amount": 1_000_000}}}, {"kind": "stop", "request_id": "x"},
]  # fmt: skip
STOP = WakeSignal(kind="stop")
AWAY = UpstreamUnavailable("store_unavailable", "Postgres is not available.")
FLOOD = 1_000
NEVER = Line("never said")


async def ring_all(served: Served, address: TurnAddress, bells: list[Any]) -> int:
    gate = asyncio.Semaphore(200)

    async def one(bell: Any) -> bool:
        async with gate:
            try:
                await served.wake(address, bell)
            except RPCError as error:
                assert is_workflow_missing(error), error
                return False
            return True

    return sum(await asyncio.gather(*map(one, bells)))


@pytest.mark.sized
@pytest.mark.timeout(PATIENCE_SECONDS)
async def test_repeated_late_and_forged_signals_have_one_effect(served: Served) -> None:
    gone, other = 0, await served.paused(Line("asking", [PAY]), DONE)
    of_other = {"request_id": approval_id(other.turn_id, "t1.0")}
    forged = [*FORGED, {"kind": "request", **of_other}, {"kind": "stop", **of_other}]
    with Others() as clocked:
        for _ in range(TURNS):
            address = await served.begin(Line("asking", [PAY], seconds=0.3), DONE)
            real = WakeSignal(kind="request", request_id=approval_id(address.turn_id, "t1.0"))
            bells = [forged[n % len(forged)] for n in range(FORGERIES)] + [real] * (DOUBLED // 2 - 50)
            assert await ring_all(served, address, [real] * 50) == 50, "before its pause"
            await served.until(address, PAUSED)
            assert await ring_all(served, address, bells) == len(bells), "none of them ends a run"
            for garbage in GARBAGE:
                await served.handle(address).signal(WAKE, args=garbage)
            assert await served.states(address) == {"t1.0": "planned"}
            assert (await served.row(address))["status"] == PAUSED.value
            ringing = asyncio.create_task(ring_all(served, address, [real] * (DOUBLED // 2)))
            await served.decide(address)
            assert (await served.until(address, TurnStatus.COMPLETED))["answer"] == "well"
            assert await served.handle(address).result() == "completed"
            gone += DOUBLED // 2 - await ringing + LATE
            assert await ring_all(served, address, [real] * LATE) == 0, "a turn that has ended has no run"
            assert (served.effects(address, "/pay"), len(served.sent_to_model(address))) == (1, 2)
            assert (await served.harness.kinds(address.turn_id)).count("done") == 1
            await replayed_calls(served, address)
    sent = TURNS * (DOUBLED + LATE + FORGERIES)
    said = f"{sent} to {TURNS} turns ({DOUBLED} doubled, {LATE} late, {FORGERIES} forged each), {gone} found no run"
    print(f"\nsignals: {said}; {clocked}")
    assert (await served.row(other))["status"] == PAUSED.value


async def test_a_signal_for_another_turn_is_ignored(served: Served) -> None:
    decided = await served.paused(Line("asking", [PAY]), DONE)
    waiting = await served.paused(Line("asking", [PAY]), DONE)
    run_id = await served.waits(waiting)
    await served.wake(waiting, WakeSignal(kind="request", request_id=approval_id(decided.turn_id, "t1.0")))
    await served.decide(decided)
    await served.until(decided, TurnStatus.COMPLETED)
    await served.waits_again(waiting, run_id)
    assert (await served.row(waiting))["status"] == PAUSED.value
    assert served.effects(waiting, "/pay") == 0
    assert (await served.handle(waiting).describe()).status is WorkflowExecutionStatus.RUNNING


async def nothing(_: Served, __: TurnAddress) -> None:
    """The call continues by itself."""


async def the_call_ends(served: Served, _: TurnAddress) -> None:
    served.harness.world.go_on.set()


async def waiting(served: Served, _: float = 0) -> TurnAddress:
    return await served.paused(Line("", [PAY]), DONE)


async def backing_off(served: Served, speaks_seconds: float) -> TurnAddress:
    """The model has failed; its next attempt is not due yet."""
    address = await served.begin(Line("well", fails=1, seconds=speaks_seconds))
    await served.fails_once(address)
    return address


@dataclass(frozen=True, slots=True)
class Place:
    """The state of a turn when it gets a signal."""

    reached: Callable[[Served, float], Awaitable[TurnAddress]]
    """Takes the seconds for which a streaming model continues."""
    goes_on: Callable[[Served, TurnAddress], Awaitable[None]]
    answer: str


PLACES = {
    "while the model speaks": Place(silent, nothing, "thinking"),
    "while a call runs": Place(lambda served, _: in_a_call(served), the_call_ends, "well"),
    "while it waits": Place(waiting, Served.decide, "well"),
    "before the next attempt": Place(backing_off, nothing, "well"),
}
everywhere = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())


async def replayed_calls(served: Served, address: TurnAddress) -> list[str]:
    """The calls of all runs of the turn; each run is replayed."""
    replaying, names = Replaying(UnsandboxedWorkflowRunner()), list[str]()
    for history in await served.runs(address):
        run = run_of(history)
        _, failure = await replaying.heard(run)
        assert failure is None, failure
        names += run.called
    return names


async def cancels(served: Served, address: TurnAddress) -> int:
    """The number of calls whose cancellation the turn's runs requested."""
    events = [event for history in await served.runs(address) for event in run_of(history).events]
    return [event["eventType"] for event in events].count("EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED")


async def ends_of_the_audit(served: Served, address: TurnAddress) -> list[tuple[str, bool]]:
    """The audit rows of stops, with whether they name a user."""
    stops = "turn_id = $1 AND kind IN ('turn.stop_requested', 'turn.cancelled', 'approval.cancelled')"
    rows = await served.harness.rows(f"SELECT kind, actor FROM audit WHERE {stops} ORDER BY id", address.turn_id)
    return [(row["kind"], row["actor"] is not None) for row in rows]


@everywhere
async def test_a_forged_stop_changes_nothing(served: Served, place: Place) -> None:
    address = await place.reached(served, 3.0)
    for _ in range(3):
        await served.wake(address, STOP)
    await place.goes_on(served, address)
    row = await served.until(address, TurnStatus.COMPLETED, TurnStatus.STOPPED)
    assert (row["status"], row["answer"], row["stop_requested_at"]) == ("completed", place.answer, None)
    assert await served.handle(address).result() == "completed"
    assert 1 <= (await replayed_calls(served, address)).count(CONFIRM) <= 3
    assert await cancels(served, address) == 0
    assert await ends_of_the_audit(served, address) == []
    assert "stopped" not in await served.harness.kinds(address.turn_id)


@everywhere
@pytest.mark.parametrize("forged_first", [5, *(pytest.param(few, marks=pytest.mark.soak) for few in (0, 1))])
async def test_a_stop_ends_the_turn_even_after_forged_ones(served: Served, place: Place, forged_first: int) -> None:
    address = await place.reached(served, 60.0)
    for _ in range(forged_first):
        await served.wake(address, STOP)
    await served.stop(address)
    row = await served.until(address, TurnStatus.COMPLETED, TurnStatus.STOPPED)
    assert (row["status"], row["problem"]) == ("stopped", None)
    assert await served.handle(address).result() == "stopped"
    assert (await served.harness.kinds(address.turn_id))[-2:] == ["stopped", "done"]
    assert CONFIRM in await replayed_calls(served, address)
    paused = place.reached is waiting
    assert await cancels(served, address) == (0 if paused else 1)
    said = [("turn.stop_requested", True), ("approval.cancelled", False)][: 2 if paused else 1]
    assert await ends_of_the_audit(served, address) == said


@dataclass(slots=True)
class Unreadable:
    """Records that cannot be read, until they can."""

    error: PerdureError | None
    tried: int = 0

    async def stop_requested(self, tx: Connection, ask: StopRequest) -> bool:
        self.tried += 1
        if self.error is not None:
            raise self.error
        return await stop_requested(tx, ask)


def unreadable(monkeypatch: pytest.MonkeyPatch, error: PerdureError = AWAY) -> Unreadable:
    """Let the record of every turn be so."""
    record = Unreadable(error)
    monkeypatch.setattr("perdure.activities.turns.stop_requested", record.stop_requested)
    return record


@pytest.mark.parametrize("asked", [False, True], ids=["forged", "asked"])
async def test_an_unread_record_cancels_nothing(served: Served, monkeypatch: pytest.MonkeyPatch, asked: bool) -> None:
    record = unreadable(monkeypatch)
    address = await in_a_call(served)
    await (served.stop(address) if asked else served.wake(address, STOP))
    await until(lambda: record.tried >= 4)
    assert (await served.row(address))["status"] == "running"
    assert await cancels(served, address) == 0
    record.error = None
    if not asked:
        served.harness.world.go_on.set()
    row = await served.until(address, TurnStatus.STOPPED, TurnStatus.COMPLETED)
    assert row["status"] == ("stopped" if asked else "completed")
    assert await served.handle(address).result() == row["status"]
    assert (await replayed_calls(served, address)).count(CONFIRM) == 2, (
        "inside the task, then with all its attempts outside"
    )


async def test_an_unreadable_record_confirms_no_stop(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    record = unreadable(monkeypatch, InvariantBroken("unexpected", "Something unforeseen."))
    address = await in_a_call(served)
    await served.stop(address)
    await until(lambda: record.tried == 2)
    await until_called(served, address, CONFIRM)
    assert (await served.row(address))["status"] == "running"
    assert await cancels(served, address) == 0
    record.error = None
    await served.wake(address, STOP)  # as the relay does for a recorded stop
    await served.until(address, TurnStatus.STOPPED)


@pytest.mark.parametrize("asked", [False, True], ids=["forged", "asked"])
async def test_a_pause_and_an_end_await_the_check(served: Served, monkeypatch: pytest.MonkeyPatch, asked: bool) -> None:
    record = unreadable(monkeypatch)
    address = await served.begin(Line("", [PAY], seconds=2.0), Line("well", seconds=2.0))
    await until(lambda: served.harness.model.requests[f"{address.turn_id}.m1"] == 1)
    await served.wake(address, STOP)
    await served.until(address, PAUSED)
    assert (await served.handle(address).describe()).workflow_type == "TurnRun"
    if asked:
        await served.stop(address)
    record.error = None
    if asked:
        await served.until(address, TurnStatus.STOPPED)
        return
    await served.waits(address)
    await served.decide(address)
    await until(lambda: served.harness.model.requests[f"{address.turn_id}.m2"] == 1)
    record.error = AWAY
    await served.wake(address, STOP)
    await until(lambda: record.tried >= 6)
    record.error = None
    row = await served.until(address, TurnStatus.COMPLETED, TurnStatus.STOPPED)
    assert (row["status"], row["answer"]) == ("completed", "well")
    assert await served.handle(address).result() == "completed"
    assert CONFIRM in await replayed_calls(served, address)


@pytest.mark.soak
async def test_a_flood_of_forged_stops_hides_no_real_stop(served: Served) -> None:
    address = await silent(served)
    assert await ring_all(served, address, [STOP] * FLOOD) == FLOOD
    assert (await served.row(address))["status"] == "running"
    await served.stop(address)
    await served.until(address, TurnStatus.STOPPED)
    assert await served.handle(address).result() == "stopped"
    (history,) = await served.runs(address)
    types = [event["eventType"] for event in run_of(history).events]
    tasks, looks = types.count("EVENT_TYPE_WORKFLOW_TASK_COMPLETED"), run_of(history).called.count(CONFIRM)
    assert types.count("EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED") == FLOOD + 1
    assert 1 <= looks <= tasks < FLOOD
    assert len(types) <= FLOOD + 4 * tasks + 20, "the signals, the tasks that took them, one marker a look"


async def test_a_check_that_hangs_in_its_task_is_repeated_and_changes_nothing(served: Served) -> None:
    with broken_inside(Breaks.HANGS, Brief.STOP) as broken:
        address = await silent(served, 2.0)
        await served.wake(address, STOP)
        row = await served.until(address, TurnStatus.COMPLETED, TurnStatus.STOPPED)
    assert (row["status"], broken) == ("completed", [address.turn_id])
    assert (await replayed_calls(served, address)).count(CONFIRM) == 2


async def send(served: Served, to: TurnAddress, on_busy: OnBusy, *lines: Line) -> TurnAddress:
    """A message into the conversation, as the API sends it: stops are called out as well."""
    address, started = await served.harness.start(*lines, conversation_id=to.conversation_id, on_busy=on_busy)
    if started.gives_way is not None:
        await served.harness.deps.live.stop(started.gives_way)
    if started.note is not None:
        await served.harness.deps.notifier.deliver_soon(started.note)
    return address


def last_asked(served: Served, address: TurnAddress) -> list[str]:
    return [str(each["role"]) for each in served.sent_to_model(address)[-1]]


async def test_a_message_sent_while_a_call_runs_is_received_with_its_result(served: Served) -> None:
    address = await in_a_call(served, NEVER)
    assert (await send(served, address, OnBusy.STEER, NEVER, Line("as you say"))).turn_id == address.turn_id
    served.harness.world.go_on.set()
    assert (await served.until(address, TurnStatus.COMPLETED))["answer"] == "as you say"
    assert last_asked(served, address) == ["user", "assistant", "tool", "user"]
    scheduled = [name for history in await served.runs(address) for name, _ in run_of(history).scheduled]
    assert scheduled.count("model.complete") == 2 and scheduled.count("tools.run") == 1, "no hop of its own"
    following, _ = await served.run_to_end(Line("next"), conversation_id=address.conversation_id)
    assert last_asked(served, following) == ["user", "assistant", "tool", "user", "assistant", "user"], "in its place"


async def test_a_message_sent_while_the_turn_waits_for_a_person_waits_with_it(served: Served) -> None:
    address = await served.paused(Line("", [PAY]), NEVER)
    await send(served, address, OnBusy.STEER, NEVER, NEVER)
    await send(served, address, OnBusy.STEER, NEVER, Line("both heard"))
    assert (await served.row(address))["status"] == PAUSED.value
    assert await served.harness.value("SELECT status FROM approvals WHERE turn_id = $1", address.turn_id) == "pending"
    await served.decide(address)
    assert (await served.until(address, TurnStatus.COMPLETED))["answer"] == "both heard"
    assert last_asked(served, address) == ["user", "assistant", "tool", "user", "user"]
    assert served.effects(address, "/pay") == 1


@pytest.mark.parametrize("where", ["speaking", "in a call", "paused", "queued before it"])
async def test_a_turn_is_replaced_in_any_state_and_the_new_one_runs(served: Served, where: str) -> None:
    if where == "speaking":
        address = await silent(served)
    elif where == "in a call":
        address = await in_a_call(served, NEVER)
    else:
        address = await served.paused(Line("", [PAY]), NEVER)
    if where == "queued before it":
        await send(served, address, OnBusy.QUEUE, Line("later"))
    other = await send(served, address, OnBusy.REPLACE, Line("instead"))
    row = await served.until(address, TurnStatus.REPLACED)
    assert (str(row["replaced_by"]), row["problem"]) == (other.turn_id, None)
    assert (await served.until(other, TurnStatus.COMPLETED))["answer"] == "instead"
    states = await served.harness.rows("SELECT status FROM approvals WHERE turn_id = $1", address.turn_id)
    assert {each["status"] for each in states} == ({"cancelled"} if where in ("paused", "queued before it") else set())
    assert served.effects(address, "/pay") == 0
    kinds = await served.harness.kinds(address.turn_id)
    assert kinds[-1] == "done" and "stopped" in kinds
    assert await served.handle(address).result() == "replaced"


@pytest.mark.sized
async def test_a_simultaneous_approval_and_replacement_pay_at_most_once(served: Served) -> None:
    for _ in range(sized(8, 2)):
        address = await served.paused(Line("", [PAY]), Line("paid"))
        answers = await gathered(served.decide(address), send(served, address, OnBusy.REPLACE, Line("instead")))
        assert isinstance(answers[1], TurnAddress), answers
        assert (await served.until(answers[1], TurnStatus.COMPLETED))["answer"] == "instead"
        row = await served.until(address, TurnStatus.REPLACED, TurnStatus.COMPLETED)
        status = await served.harness.value("SELECT status FROM approvals WHERE turn_id = $1", address.turn_id)
        paid, state = served.effects(address, "/pay"), (await served.states(address))["t1.0"]
        assert (paid, state) in {(0, "planned"), (1, "done"), (1, "outcome_unknown"), (0, "outcome_unknown")}
        assert status == ("cancelled" if state == "planned" else state), (row["status"], status, state)
