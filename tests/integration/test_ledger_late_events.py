"""An attempt that comes after the turn's end brings events: none of them is written behind `done`."""

from collections.abc import Awaitable, Callable

import pytest

from perdure.activities.approvals import ApprovalActivities
from perdure.activities.model import ModelActivities
from perdure.activities.tools import ToolActivities
from perdure.activities.turns import TurnActivities
from perdure.contracts.activities import VerdictsAsk
from perdure.contracts.events import PendingEvent
from perdure.contracts.turns import FinishAsk, TurnAddress, TurnStatus
from tests.desk import Desk
from tests.doubles.fake_turn import NOW

PENDING = (PendingEvent(kind="node_start", at=NOW, number=7, data={"node": "late"}),)


async def asks_the_model(desk: Desk, address: TurnAddress) -> None:
    call = (await desk.model_call(address)).model_copy(update={"events": PENDING})
    reply = await desk.activity(ModelActivities(desk.deps).complete, call, attempt=2)
    assert reply.message is not None, "the stored reply"


async def runs_the_tool(desk: Desk, address: TurnAddress) -> None:
    call = (await desk.tool_call(address, "t1.0")).model_copy(update={"events": PENDING})
    outcome = await desk.activity(ToolActivities(desk.deps).run, call, attempt=2)
    assert outcome.message is not None, "the stored outcome"


async def reads_verdicts(desk: Desk, address: TurnAddress) -> None:
    await desk.activity(ApprovalActivities(desk.deps).read, VerdictsAsk(address=address, requests=(), events=PENDING))


@pytest.mark.parametrize("late", [asks_the_model, runs_the_tool, reads_verdicts])
@pytest.mark.parametrize("has_ended", [True, False])
async def test_events_that_wait_are_written_while_the_turn_is_open_and_never_behind_done(
    desk: Desk, late: Callable[[Desk, TurnAddress], Awaitable[None]], has_ended: bool
) -> None:
    address = await desk.plan(("look", {}))
    await desk.run_tool(address)
    if has_ended:
        await desk.activity(TurnActivities(desk.deps).finish, FinishAsk(address=address, status=TurnStatus.COMPLETED))
    before = await desk.kinds(address.turn_id)
    await late(desk, address)
    after = await desk.kinds(address.turn_id)
    assert after == (before if has_ended else [*before, "node_start"])
    assert (after[-1] == "done") is has_ended
