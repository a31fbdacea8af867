"""When a paused turn looks by itself: at the time that the records named last, not at an expiry that is no more."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType

from perdure.contracts.activities import Verdicts
from perdure.contracts.approvals import Verdict, VerdictState
from perdure.contracts.turns import Bell, TurnAddress, TurnStatus
from perdure.store.approvals.verdicts import read_verdicts
from tests.doubles.spoken import Line
from tests.served import DONE, PAY, POST, Served

FAR = timedelta(hours=3)


def with_looks(monkeypatch: pytest.MonkeyPatch, look_at: Callable[[Verdict], datetime | None]) -> None:
    """Let the records name a time for what is pending, as an escalation or a hold does."""

    async def named(*given: Any) -> Verdicts:
        found = await read_verdicts(*given)
        return found.model_copy(
            update={
                "verdicts": tuple(
                    each.model_copy(update={"look_at": look_at(each)}) if each.state is VerdictState.PENDING else each
                    for each in found.verdicts
                )
            }
        )

    monkeypatch.setattr("perdure.activities.approvals.read_verdicts", named)


async def timer_seconds(served: Served, address: TurnAddress, run_id: str) -> float:
    """How long a wait is willing to wait."""
    for _ in range(1_500):
        history = await served.history(address, run_id)
        for event in history.events:
            if event.event_type == EventType.EVENT_TYPE_TIMER_STARTED:
                wait = event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta()
                return float(wait.total_seconds())
        await asyncio.sleep(0.02)
    raise AssertionError("it has no timer")


async def test_a_wait_is_until_the_earliest_look_that_a_pending_record_names(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = datetime.now(UTC)
    looks = {"t1.0": began + FAR, "t1.1": began + 2 * FAR}
    address = await served.paused(Line("asking", [PAY, POST]), DONE)
    run_id = await served.waits(address)
    expiry = await timer_seconds(served, address, run_id)
    assert expiry > timedelta(days=1).total_seconds()
    with_looks(monkeypatch, lambda verdict: looks[verdict.call_id])
    await served.ring(address, Bell(kind="request"))
    run_id = await served.waits_again(address, run_id)
    assert FAR.total_seconds() - 60 < await timer_seconds(served, address, run_id) < FAR.total_seconds() + 60
    await served.decide(address, "t1.0")
    run_id = await served.waits_again(address, run_id)
    assert (await served.states(address))["t1.0"] == "done"
    assert await timer_seconds(served, address, run_id) > 2 * FAR.total_seconds() - 60, "the other's look is left"
    await served.decide(address, "t1.1")
    await served.until(address, TurnStatus.COMPLETED)


async def test_a_turn_that_nobody_rings_looks_when_a_hold_ends(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    address = await served.paused(Line("asking", [PAY]), DONE)
    ready_at: datetime | None = None

    async def held(*given: Any) -> Verdicts:
        nonlocal ready_at
        found = await read_verdicts(*given)
        ready_at = ready_at or datetime.now(UTC) + timedelta(seconds=2)  # so that the first look surely meets it
        if datetime.now(UTC) >= ready_at:
            return found
        (verdict,) = found.verdicts
        return Verdicts(verdicts=(verdict.model_copy(update={"state": VerdictState.PENDING, "look_at": ready_at}),))

    monkeypatch.setattr("perdure.activities.approvals.read_verdicts", held)
    await served.decide(address)
    await served.until(address, TurnStatus.COMPLETED)
    assert ready_at is not None and datetime.now(UTC) >= ready_at
    assert served.effects(address, "/pay") == 1
    _, _, _, wait, _ = await served.runs(address)
    assert [event for event in wait.events if event.event_type == EventType.EVENT_TYPE_TIMER_FIRED]
