"""An attempt that may not send any more: what it leaves of a call that an attempt before it may have sent."""

import asyncio
import time
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from perdure.activities import tools
from perdure.activities.turns import TurnActivities
from perdure.contracts.calls import CallState, ToolCall
from perdure.contracts.ids import effect_key
from perdure.contracts.turns import FinishAsk, TurnAddress, TurnStatus
from perdure.store.calls import tool_calls
from perdure.store.database import Connection
from perdure.store.turns.start import request_stop
from tests.desk import Desk, gathered, until

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def a_slow_claim(desk: Desk, monkeypatch: Patch) -> None:
    """Every claim is old when it returns, so the ledger is asked again before the call is sent."""
    desk.world.go_on.clear()
    monkeypatch.setattr(tools, "FRESH_SECONDS", 0.0)


async def sent_by_a_dead_worker(desk: Desk, tool: str) -> TurnAddress:
    """A call whose first attempt has reached its target and then died."""
    address = await desk.plan((tool, {"mode": "wait"}))
    running = desk.world.running
    dying = asyncio.create_task(desk.run_tool(address))
    await until(lambda: desk.world.running > running)
    dying.cancel()
    await gathered(dying)
    return address


async def unsent(desk: Desk, address: TurnAddress, attempt: int) -> None:
    """An attempt that ends without sending, to be tried again."""
    with pytest.raises(ApplicationError) as raised:
        await desk.run_tool(address, attempt=attempt)
    assert (raised.value.type, raised.value.non_retryable) == ("tool_unavailable", False)


def unreadable(monkeypatch: Patch) -> None:
    """The ledger does not answer who owns the call, once."""

    async def broken(tx: Connection, call: ToolCall, epoch: int) -> bool:
        monkeypatch.setattr(tool_calls, "still_owned", real)
        raise OSError("connection reset")

    real = tool_calls.still_owned
    monkeypatch.setattr(tool_calls, "still_owned", broken)


async def test_a_call_that_reached_its_target_stays_open_to_settle_if_a_stop_meets_the_second_attempt(
    desk: Desk, monkeypatch: Patch
) -> None:
    address = await sent_by_a_dead_worker(desk, "book")
    owned = tool_calls.still_owned

    async def stopped_first(tx: Connection, call: ToolCall, epoch: int) -> bool:
        async with desk.db.transaction("local") as other:
            await request_stop(other, address.turn_id, desk.people["requester"].user_id)
        return await owned(tx, call, epoch)

    monkeypatch.setattr(tool_calls, "still_owned", stopped_first)
    await unsent(desk, address, 2)
    row = await desk.call_row(address)
    assert row["state"] == "reserved" and row["first_sent_at"] is not None
    await desk.activity(TurnActivities(desk.deps).finish, FinishAsk(address=address, status=TurnStatus.STOPPED))
    assert (await desk.call_row(address))["state"] == "outcome_unknown"
    assert desk.world.effects.count(("/book", effect_key(address.turn_id, "t1.0"))) == 1


async def test_a_key_grows_old_from_the_first_send_also_over_an_attempt_that_could_not_tell_whether_to_send(
    desk: Desk, monkeypatch: Patch
) -> None:
    address = await sent_by_a_dead_worker(desk, "brief_key")
    unreadable(monkeypatch)
    await unsent(desk, address, 2)
    await desk.write(
        "UPDATE tool_calls SET first_sent_at = first_sent_at - interval '2 seconds' WHERE turn_id = $1", address.turn_id
    )
    assert (await desk.run_tool(address, attempt=3)).state is CallState.OUTCOME_UNKNOWN
    assert desk.world.requests[effect_key(address.turn_id, "t1.0")] == 1


async def test_a_young_key_is_sent_again_after_an_attempt_that_could_not_tell(desk: Desk, monkeypatch: Patch) -> None:
    address = await sent_by_a_dead_worker(desk, "book")
    unreadable(monkeypatch)
    await unsent(desk, address, 2)
    assert (await desk.run_tool(address, attempt=3)).state is CallState.DONE
    assert desk.world.effects.count(("/book", effect_key(address.turn_id, "t1.0"))) == 1


@pytest.mark.parametrize("tool", ["book", "shout", "look"])
async def test_a_call_that_nobody_can_have_sent_is_planned_anew(desk: Desk, monkeypatch: Patch, tool: str) -> None:
    address = await desk.plan((tool, {}))
    unreadable(monkeypatch)
    await unsent(desk, address, 1)
    row = await desk.call_row(address)
    assert (row["state"], row["first_sent_at"], row["errors"]) == ("planned", None, 1)
    assert (await desk.run_tool(address, attempt=2)).state is CallState.DONE


async def test_a_claim_made_before_the_machine_slept_is_not_fresh(desk: Desk, monkeypatch: Patch) -> None:
    monkeypatch.undo()
    address = await desk.plan(("book", {}))
    slept, asked, real = [0.0], [0], time.clock_gettime
    reserve, owned = tool_calls.reserve, tool_calls.still_owned

    async def then_sleeps(*given: Any) -> int:
        slept[0] = 60.0
        return await reserve(*given)

    async def counted(tx: Connection, call: ToolCall, epoch: int) -> bool:
        asked[0] += 1
        return await owned(tx, call, epoch)

    # As Linux has it: CLOCK_BOOTTIME goes on while the machine sleeps, CLOCK_MONOTONIC and time.monotonic() do not.
    awake_or_not = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    monkeypatch.setattr(time, "clock_gettime", lambda clock: real(clock) + (slept[0] if clock == awake_or_not else 0.0))
    monkeypatch.setattr(tool_calls, "reserve", then_sleeps)
    monkeypatch.setattr(tool_calls, "still_owned", counted)
    assert (await desk.run_tool(address)).state is CallState.DONE
    assert asked == [1]
