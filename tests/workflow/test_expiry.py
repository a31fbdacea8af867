"""Approvals that nobody decides on: the turn's own timer ends the wait, whatever else happens meanwhile."""

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory

from perdure.contracts.turns import Bell, TurnAddress, TurnStatus
from perdure.core.approvals.gates import MARGIN
from tests.desk import Desk
from tests.doubles.spoken import Line
from tests.served import ALL_KINDS, PAUSED, PAY, Served, apart, refused, serve

LINES = (Line("asking", [PAY]), Line("well"))
EXPIRES = timedelta(seconds=3)
"""What the agent `hasty` says."""


def woken_by(history: WorkflowHistory) -> list[str]:
    """What reached a wait: its timer, its signals."""
    types = (EventType.EVENT_TYPE_TIMER_FIRED, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED)
    found = [event.event_type for event in history.events if event.event_type in types]
    return [EventType.Name(each).removeprefix("EVENT_TYPE_") for each in found]


def goes_off_at(wait: WorkflowHistory) -> datetime:
    """The moment that a wait's timer is set to."""
    for event in wait.events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
            began = event.event_time.ToDatetime(UTC)
        if event.event_type == EventType.EVENT_TYPE_TIMER_STARTED:
            return began + event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta()
    raise AssertionError("it has no timer")


async def deadline(served: Served, address: TurnAddress) -> datetime:
    """When the turn's approval expires."""
    found: Any = (await served.desk.approval_row(address))["expires_at"]
    assert isinstance(found, datetime)
    return found


async def assert_expired(served: Served, address: TurnAddress) -> None:
    """The turn went on without the call, and not before the deadline."""
    row = await served.until(address, TurnStatus.COMPLETED)
    assert row["answer"] == "well"
    assert row["ended_at"] > await deadline(served, address)
    assert (await served.desk.approval_row(address))["status"] == "expired"
    assert served.effects(address, "/pay") == 0
    assert (await served.desk.kinds(address.turn_id)).count("tool.denied") == 1
    assert [message["role"] for message in served.sent_to_model(address)[-1]] == ["user", "system"]


async def test_the_turns_own_timer_ends_a_wait_that_nobody_rings(served: Served) -> None:
    address = await served.paused(*LINES, agent_id="hasty")
    await assert_expired(served, address)
    _, wait, _ = await served.runs(address)
    assert woken_by(wait) == ["TIMER_FIRED"]
    (timer,) = [event for event in wait.events if event.HasField("timer_started_event_attributes")]
    assert timedelta(0) < timer.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta() <= EXPIRES + MARGIN


async def test_a_bell_before_the_deadline_does_not_put_it_off(served: Served) -> None:
    address = await served.paused(*LINES, agent_id="hasty")
    run_id = await served.waits(address)
    expires_at = await deadline(served, address)
    await served.ring(address, Bell(kind="request"))
    await served.waits_again(address, run_id)
    assert await deadline(served, address) == expires_at
    await assert_expired(served, address)
    waits = (await served.runs(address))[1::2]
    assert abs(goes_off_at(waits[-1]) - expires_at - MARGIN) < timedelta(seconds=0.1)
    assert [woken_by(run) for run in waits] == [["WORKFLOW_EXECUTION_SIGNALED"], ["TIMER_FIRED"]]


async def test_a_decision_before_the_deadline_stands_after_it(served: Served) -> None:
    address = await served.paused(*LINES, agent_id="hasty")
    await served.decide(address)
    await served.until(address, TurnStatus.COMPLETED)
    assert served.effects(address, "/pay") == 1
    assert [woken_by(run) for run in await served.runs(address)][1::2] == [["WORKFLOW_EXECUTION_SIGNALED"]]


async def test_a_deadline_that_passes_while_no_worker_runs_is_kept_when_one_does(desk: Desk, temporal: Client) -> None:
    served = apart(desk, temporal)
    async with AsyncExitStack() as stack:
        await serve(stack, served.desk, ALL_KINDS)
        address = await served.paused(*LINES, agent_id="hasty")
    await asyncio.sleep((EXPIRES + MARGIN).total_seconds() + 0.5)
    assert (await served.row(address))["status"] == PAUSED.value
    with refused("approval_expired"):
        await served.decide(address)
    async with AsyncExitStack() as stack:
        await serve(stack, served.desk, ALL_KINDS)
        await assert_expired(served, address)
