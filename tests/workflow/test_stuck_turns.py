"""Turns whose workflow task fails at every attempt: an exception in a node, a state that Temporal does not take."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs
from temporalio.client import WorkflowExecutionStatus

from perdure.contracts.turns import TurnAddress, TurnStatus
from perdure.core.turns import OnBusy
from perdure.graph.step import Step
from perdure.store.database import Database
from perdure.store.status import workload_of
from perdure.store.turns.views import get_turn
from perdure.temporal.workflow_client import Notifier
from perdure.worker.reconcile import Reconciler
from perdure.workflows.turn_segment import TurnSegment
from tests.conftest import KEYRING, Urls
from tests.doubles.message_script import Line
from tests.eventually import until
from tests.served_turns import ALL_KINDS, DONE, PAY, POST, Served, apart, serve

MIB = 1 << 20


@pytest.fixture(autouse=True)
def fast_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second attempt already counts, and attempts follow each other within a second or two."""
    monkeypatch.setattr("perdure.core.status.MIN_FAILURES", 1)
    monkeypatch.setattr("perdure.temporal.workflow_client.TASK_TIMEOUT", timedelta(seconds=1))


@pytest.fixture(scope="module")
async def relay(urls: Urls) -> AsyncIterator[Database]:
    database = await Database.connect(urls.relay, max_connections=4, keyring=KEYRING)
    yield database
    await database.close()


async def reconciled(served: Served, relay: Database, address: TurnAddress, stuck_after: float) -> dict[str, Any]:
    """The turn after the first pass of a new process."""
    reconciler = Reconciler(relay, served.client, Notifier(served.client, relay), stuck_after=stuck_after)
    await reconciler.run_pass()
    return dict(await served.row(address))


async def reconcile_until_ended(served: Served, relay: Database, address: TurnAddress) -> dict[str, Any]:
    """The turn once it is due and its task has failed again: the first pass only sends a signal."""
    assert (await reconciled(served, relay, address, 0.001))["ended_at"] is None

    async def has_ended() -> dict[str, Any] | None:
        row = await reconciled(served, relay, address, 0.001)
        return row if row["ended_at"] is not None else None

    return await until(has_ended) or {}


async def reconcile_until_stuck(served: Served, relay: Database, address: TurnAddress) -> dict[str, Any]:
    """What is shown of the turn, once it is found to be stuck."""

    async def found() -> bool:
        return (await reconciled(served, relay, address, 0.0))["stuck"] is not None

    await served.harness.make_older(address)
    with capture_logs() as said:
        await until(found)
        await reconciled(served, relay, address, 3_600.0)
    logged = [line for line in said if line["event"] == "turn_stuck"]
    assert [(line["turn_id"], line["log_level"]) for line in logged] == [(address.turn_id, "error")], "once"
    async with relay.transaction("local") as tx:
        shown, listed = (await get_turn(tx, address.turn_id, None))["stuck"], (await workload_of(tx)).stuck
    assert isinstance(shown, dict) and (logged[0]["failure"], shown["failures"] >= 1) == (shown["message"], True)
    assert [each["message"] for each in listed if each["turn_id"] == address.turn_id] == [shown["message"]]
    return shown


async def failing_node(served: Served, monkeypatch: pytest.MonkeyPatch) -> TurnAddress:
    """A paused turn that breaks when it is resumed; one of its calls had begun."""
    address, take = await served.paused(Line("", [PAY, POST]), DONE), Step.take

    async def broken(self: Step, state: Any, run: Any, number: int) -> Any:
        if state["execution_id"] == address.turn_id:
            raise LookupError("planted\nwith a second line")
        return await take(self, state, run, number)

    monkeypatch.setattr(Step, "take", broken)
    await served.decide(address, "t1.1")
    for table, column in (("tool_calls", "state"), ("approvals", "status")):
        change = f"UPDATE {table} SET {column} = 'reserved' WHERE turn_id = $1 AND call_id = 't1.1'"
        await served.harness.write(change, address.turn_id)
    return address


async def oversized_state(served: Served, monkeypatch: pytest.MonkeyPatch) -> TurnAddress:
    """A turn that cannot be handed on to its wait."""
    carry = TurnSegment.carry

    def oversized(self: TurnSegment, state: Any, requests: Any) -> Any:
        return carry(self, {**state, "answer": "secret" * MIB}, requests)

    monkeypatch.setattr(TurnSegment, "carry", oversized)
    address = await served.begin(Line("", [PAY, POST]), DONE)
    await served.until(address)
    return address


@pytest.mark.parametrize(
    ("plant", "failure", "call"),
    [(failing_node, "LookupError: planted", "outcome_unknown"), (oversized_state, "PayloadsTooLarge: ", "planned")],
)
async def test_a_stuck_turn_is_named_and_then_fails(
    served: Served, relay: Database, monkeypatch: pytest.MonkeyPatch, plant: Any, failure: str, call: str
) -> None:
    address = await plant(served, monkeypatch)
    waiting = await served.begin(Line("next"), conversation_id=address.conversation_id, on_busy=OnBusy.QUEUE)
    message = (await reconcile_until_stuck(served, relay, address))["message"]
    assert message.startswith(failure) and "second line" not in message and "secretsecret" not in message
    row = await reconcile_until_ended(served, relay, address)
    assert (row["status"], row["problem"]["code"], row["stuck"]) == ("failed", "turn_stuck", None)
    assert (await served.handle(address).describe()).status is WorkflowExecutionStatus.TERMINATED
    approvals = await served.harness.rows(
        "SELECT status FROM approvals WHERE turn_id = $1 ORDER BY id", address.turn_id
    )
    assert sorted(each["status"] for each in approvals) == sorted(
        ["cancelled", "outcome_unknown" if call == "outcome_unknown" else "cancelled"]
    )
    assert (await served.states(address))["t1.1"] == call
    assert (await served.harness.kinds(address.turn_id))[-2:] == ["workflow.error", "done"]
    assert (await served.until(waiting, TurnStatus.COMPLETED))["answer"] == "next"


async def test_a_turn_that_is_due_continues_after_a_correction(
    served: Served, relay: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes while no worker tries the turn, or while a corrected one has it, do not end it."""
    own = apart(served.harness, served.client)
    with monkeypatch.context() as broken:
        broken.setattr(Step, "take", None)
        async with AsyncExitStack() as workers:
            await serve(workers, own.harness, ALL_KINDS)
            address = await own.begin(DONE)
            await reconcile_until_stuck(own, relay, address)
        assert (await reconciled(own, relay, address, 0.001))["stuck"]["probed_at"]
        for _ in range(3):
            await asyncio.sleep(1.0)  # three times the timeout of a task
            assert (await reconciled(own, relay, address, 0.001))["ended_at"] is None
    async with AsyncExitStack() as workers:
        await serve(workers, own.harness, ALL_KINDS)
        row = await own.until(address, TurnStatus.COMPLETED)
    assert (row["answer"], row["stuck"]) == ("well", None)


async def test_an_interrupted_end_is_completed(
    served: Served, relay: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = await failing_node(served, monkeypatch)
    await reconcile_until_stuck(served, relay, address)
    with monkeypatch.context() as dying:
        dying.setattr("perdure.worker.reconcile.finish_broken", None)

        async def is_terminated() -> bool:
            assert (await reconciled(served, relay, address, 0.001))["status"] == "awaiting_approval"
            return (await served.handle(address).describe()).status is WorkflowExecutionStatus.TERMINATED

        await until(is_terminated)
    row = await reconciled(served, relay, address, 0.0)
    assert (row["status"], row["problem"]["code"]) == ("failed", "turn_stuck")


async def test_signals_after_a_failure_do_not_hide_it(
    served: Served, relay: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.temporal.workflow_tasks.PAGE_EVENTS", 2)
    address = await failing_node(served, monkeypatch)
    await reconcile_until_stuck(served, relay, address)
    for _ in range(3):
        await served.wake(address, None)
    assert (await reconciled(served, relay, address, 0.0))["stuck"] is not None


async def test_it_is_found_among_many_paused_turns_after_a_signal(
    served: Served, relay: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.worker.reconcile.MAX_CHECKED_ONE_BY_ONE", 1)
    await served.harness.make_older(await served.paused(Line("", [PAY]), DONE))
    address = await failing_node(served, monkeypatch)
    await served.harness.write("UPDATE turns SET rung_at = now() - interval '1 minute' WHERE id = $1", address.turn_id)
    await reconcile_until_stuck(served, relay, address)
