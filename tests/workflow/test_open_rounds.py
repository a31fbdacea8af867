"""Several gated calls in one round, on the real server: each starts as it is decided, and is asked for once."""

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack

import pytest
from pydantic import JsonValue
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from perdure.contracts.ids import approval_id
from perdure.contracts.turns import Bell, Kind, Routing, TurnAddress, TurnStatus
from perdure.core.approvals.decisions import Decision
from perdure.local import DataParts
from tests.conftest import Urls
from tests.desk import Desk, until
from tests.doubles.spoken import Line
from tests.served import ALL_KINDS, DONE, PAUSED, PAY, POST, Served, apart, serve
from tests.topologies.played import ungated_first
from tests.worker_process import worker_process

pytestmark = pytest.mark.filterwarnings(
    # As in test_bells.py: a signal that meets a continue-as-new leaves a handler that was not begun.
    "ignore:.*run_signal:pytest.PytestUnraisableExceptionWarning"
)

BOOK = ("book", {"what": "a chair"})
SLOW: tuple[str, dict[str, JsonValue]] = ("pay", {"amount": 5, "mode": "wait"})
IDS = ("t1.0", "t1.1", "t1.2")


async def made(served: Served, address: TurnAddress) -> Counter[str]:
    """How often each call was asked for of a tools worker, over all runs of the turn."""
    found: Counter[str] = Counter()
    for history in await served.runs(address):
        for event in history.events:
            scheduled = event.activity_task_scheduled_event_attributes
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED and (
                scheduled.activity_type.name == "tools.run"
            ):
                found[json.loads(scheduled.input.payloads[0].data)["ask"]["call_id"]] += 1
    return found


async def state_of(served: Served, address: TurnAddress, call_id: str, *states: str) -> None:
    for _ in range(1_500):
        if (await served.states(address))[call_id] in states:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{call_id} never came to {states}: {await served.states(address)}")


async def waits_for(served: Served, address: TurnAddress, *ids: str) -> str:
    """The run id of the wait for exactly these requests."""
    for _ in range(1_500):
        row = await served.row(address)
        if row["waiting"] and row["waiting"]["ids"] == [*ids]:
            return await served.waits(address)
        await asyncio.sleep(0.02)
    raise AssertionError(f"it waits for {row['waiting']}")


async def test_three_calls_run_in_the_order_in_which_they_are_decided(served: Served) -> None:
    address = await served.paused(Line("asking", [PAY, POST, PAY, BOOK]), DONE)
    for call_id in ("t1.2", "t1.0", "t1.1"):
        assert (await served.states(address))[call_id] == "planned"
        await served.decide(address, call_id)
        await state_of(served, address, call_id, "done")
    row = await served.until(address, TurnStatus.COMPLETED)
    assert (row["answer"], row["waiting"]) == ("well", None)
    assert await made(served, address) == {"t1.0": 1, "t1.1": 1, "t1.2": 1, "t1.3": 1}
    sent = served.sent_to_model(address)
    assert [message["role"] for message in sent[-1][-5:]] == ["assistant", "tool", "tool", "tool", "tool"]
    assert [call["id"] for call in sent[-1][-5]["tool_calls"]] == [each["tool_call_id"] for each in sent[-1][-4:]]
    assert len(sent) == 2, "the model is called when all are settled"
    assert [role for role, _ in await served.transcript(address)] == ["assistant", *["tool"] * 4, "assistant"]
    told = await served.desk.kinds(address.turn_id)
    assert [told.count(kind) for kind in ("tool.executing", "tool.result", "tool.awaiting_approval")] == [4, 4, 3]


async def test_a_partly_run_round_waits_visibly_for_the_rest_with_nothing_dangling(served: Served) -> None:
    address = await served.paused(Line("asking", [PAY, POST]), DONE)
    await served.decide(address)
    run_id = await waits_for(served, address, approval_id(address.turn_id, "t1.1"))
    row = await served.row(address)
    assert row["status"] == PAUSED.value and row["waiting"]["expires_at"] is not None
    assert await served.states(address) == {"t1.0": "done", "t1.1": "planned"}
    for _ in range(2):
        await served.ring(address, Bell(kind="request"))
        run_id = await served.waits_again(address, run_id)
    assert await made(served, address) == {"t1.0": 1}, "a look that finds nothing asks for nothing"
    await served.decide(address, "t1.1", Decision.REJECT, comment="not that")
    await served.until(address, TurnStatus.COMPLETED)
    assert await made(served, address) == {"t1.0": 1, "t1.1": 1}
    assert await served.states(address) == {"t1.0": "done", "t1.1": "denied"}
    assert "not that" in served.sent_to_model(address)[-1][-1]["content"]
    assert served.effects(address, "/post", "t1.1") == 0


async def test_a_call_that_is_approved_while_another_runs_starts_at_once(served: Served) -> None:
    served.desk.world.go_on.clear()
    address = await served.paused(Line("asking", [SLOW, POST, PAY]), DONE)
    await served.decide(address)
    await until(lambda: served.effects(address, "/pay") == 1)
    await served.decide(address, "t1.1")
    await until(lambda: served.effects(address, "/post", "t1.1") == 1)
    await served.decide(address, "t1.2", Decision.REJECT, comment="once is enough")
    await state_of(served, address, "t1.2", "denied")
    assert (await served.states(address))["t1.0"] == "reserved", "the first is still under way"
    served.desk.world.go_on.set()
    await served.until(address, TurnStatus.COMPLETED)
    assert await made(served, address) == {"t1.0": 1, "t1.1": 1, "t1.2": 1}
    assert len(await served.runs(address)) == 3, "one pause in all"
    assert served.effects(address, "/pay", "t1.2") == 0


async def test_what_nobody_decides_on_while_another_runs_is_paused_for_afterwards(served: Served) -> None:
    served.desk.world.go_on.clear()
    address = await served.paused(Line("asking", [SLOW, POST]), DONE)
    await served.decide(address)
    await until(lambda: served.effects(address, "/pay") == 1)
    for _ in range(20):
        await served.ring(address, Bell(kind="request"))
    served.desk.world.go_on.set()
    await waits_for(served, address, approval_id(address.turn_id, "t1.1"))
    await served.decide(address, "t1.1")
    await served.until(address, TurnStatus.COMPLETED)
    assert await made(served, address) == {"t1.0": 1, "t1.1": 1}


async def test_one_approved_and_one_that_expires_end_the_round_together(served: Served) -> None:
    address = await served.begin(Line("asking", [PAY, POST]), DONE, agent_id="hasty")
    await served.until(address, PAUSED)
    await served.decide(address)
    await served.until(address, TurnStatus.COMPLETED)
    assert await served.states(address) == {"t1.0": "done", "t1.1": "denied"}
    assert await made(served, address) == {"t1.0": 1, "t1.1": 1}
    assert (await served.desk.approval_row(address, "t1.1"))["status"] == "expired"


async def test_a_stop_while_one_call_runs_and_one_waits_ends_both_truthfully(served: Served) -> None:
    served.desk.world.go_on.clear()
    address = await served.paused(Line("asking", [("post", {"mode": "wait"}), PAY]), DONE)
    await served.decide(address)
    await until(lambda: served.effects(address, "/post") == 1)
    await served.stop(address)
    row = await served.until(address, TurnStatus.STOPPED)
    served.desk.world.go_on.set()
    assert row["problem"] is None
    assert await served.states(address) == {"t1.0": "outcome_unknown", "t1.1": "planned"}
    statuses = await served.desk.rows(
        "SELECT status FROM approvals WHERE turn_id = $1 ORDER BY call_id", address.turn_id
    )
    assert [each["status"] for each in statuses] == ["outcome_unknown", "cancelled"]
    assert len(served.sent_to_model(address)) == 1


async def test_a_stop_while_a_partly_run_round_waits_closes_what_waits(served: Served) -> None:
    address = await served.paused(Line("asking", [PAY, POST]), DONE)
    await served.decide(address)
    await waits_for(served, address, approval_id(address.turn_id, "t1.1"))
    await served.stop(address)
    await served.until(address, TurnStatus.STOPPED)
    assert await served.states(address) == {"t1.0": "done", "t1.1": "planned"}
    assert (await served.desk.approval_row(address, "t1.1"))["status"] == "cancelled"
    assert served.effects(address, "/pay") == 1
    assert [role for role, _ in await served.transcript(address)] == ["assistant", "tool", "tool"], "what ran is kept"


async def test_a_topology_may_run_what_needs_nobody_as_soon_as_the_requests_are_open(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = ungated_first()
    monkeypatch.setattr("perdure.workflows.turn_run.topology", lambda name: other)
    address = await served.paused(Line("asking", [PAY, BOOK]), DONE)
    await state_of(served, address, "t1.1", "done")
    await waits_for(served, address, approval_id(address.turn_id, "t1.0"))
    kinds = await served.desk.kinds(address.turn_id)
    assert kinds.index("tool.awaiting_approval") < kinds.index("tool.executing"), "open before anything runs"
    assert len(await served.runs(address)) == 2, "it did not wait in between"
    await served.decide(address)
    await served.until(address, TurnStatus.COMPLETED)
    assert await made(served, address) == {"t1.0": 1, "t1.1": 1}


@pytest.mark.soak
async def test_workers_that_are_replaced_between_the_decisions_change_nothing(desk: Desk, temporal: Client) -> None:
    served = apart(desk, temporal)
    at = served.desk
    async with AsyncExitStack() as stack:
        await serve(stack, at, ALL_KINDS)
        address = await served.paused(Line("asking", [PAY, POST, PAY]), DONE)
    for call_id in ("t1.1", "t1.2", "t1.0"):
        await served.decide(address, call_id)
        async with AsyncExitStack() as stack:
            await serve(stack, at, ALL_KINDS)
            await state_of(served, address, call_id, "done")
            await served.until(address, PAUSED, TurnStatus.COMPLETED)
    assert (await served.row(address))["status"] == TurnStatus.COMPLETED.value
    assert await made(served, address) == {"t1.0": 1, "t1.1": 1, "t1.2": 1}


async def test_a_worker_that_is_killed_while_calls_of_a_round_run_takes_none_of_them_with_it(
    desk: Desk, temporal: Client, urls: Urls, parts: DataParts
) -> None:
    served = apart(desk, temporal, Routing.spread())
    at = served.desk
    at.world.go_on.clear()
    async with AsyncExitStack() as stack:
        await serve(stack, at, tuple(kind for kind in ALL_KINDS if kind is not Kind.TURNS))
        async with worker_process("dying_worker", urls, parts, at.routing.turns) as process:
            address = await served.paused(Line("asking", [SLOW, POST, PAY]), DONE)
            await served.decide(address)
            await until(lambda: served.effects(address, "/pay") == 1)
            await served.decide(address, "t1.1")
            await until(lambda: served.effects(address, "/post", "t1.1") == 1)
            process.kill()
        await served.decide(address, "t1.2")
        await serve(stack, at, (Kind.TURNS,))
        await state_of(served, address, "t1.2", "done")
        assert (await served.states(address))["t1.0"] == "reserved", "the first is still under way"
        at.world.go_on.set()
        await served.until(address, TurnStatus.COMPLETED)
    assert await made(served, address) == {"t1.0": 1, "t1.1": 1, "t1.2": 1}
    effects = [("/pay", "t1.0"), ("/post", "t1.1"), ("/pay", "t1.2")]
    assert [served.effects(address, path, call_id) for path, call_id in effects] == [1, 1, 1]
