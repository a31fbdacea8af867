"""A cancel from Temporal's side, by hand or by a batch job: the turn ends as after a stop, with its records closed."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from temporalio.client import Client

from perdure.contracts.turns import Kind, Routing, TurnAddress, TurnStatus
from perdure.core.turns import OnBusy
from perdure.store.database import new_id
from tests.desk import Desk, until
from tests.doubles.spoken import Line
from tests.served import ALL_KINDS, Served, serve

PAY = ("pay", {"amount": 5})
DONE = Line("well")


async def cancelled(served: Served, address: TurnAddress) -> None:
    """Cancel the turn's workflow; the turn ends as stopped, without a problem, and so does its last run."""
    await served.handle(address).cancel()
    row = await served.until(address, TurnStatus.STOPPED, TurnStatus.FAILED)
    assert (row["status"], row["problem"]) == ("stopped", None)
    assert await served.handle(address).result() == "stopped"
    assert (await served.desk.kinds(address.turn_id))[-2:] == ["stopped", "done"]


async def test_a_paused_turn_that_is_cancelled_ends_stopped_and_admits_the_next(served: Served) -> None:
    address = await served.paused(Line("asking", [PAY]), DONE)
    waiting = await served.begin(Line("my turn"), conversation_id=address.conversation_id, on_busy=OnBusy.QUEUE)
    await cancelled(served, address)
    assert await served.desk.value("SELECT status FROM approvals WHERE turn_id = $1", address.turn_id) == "cancelled"
    assert (await served.until(waiting, TurnStatus.COMPLETED))["answer"] == "my turn"


async def test_a_turn_cancelled_while_the_model_speaks_keeps_what_was_said(served: Served) -> None:
    address = await served.begin(Line("thinking", seconds=60))
    await until(lambda: served.desk.model.requests[f"{address.turn_id}.m1"] == 1)
    await cancelled(served, address)
    assert [text for _, text in await served.transcript(address)] == ["thinking"]


async def test_a_turn_cancelled_while_calls_are_under_way_leaves_their_outcome_to_a_person(served: Served) -> None:
    served.desk.world.go_on.clear()
    address = await served.begin(Line("", [("shout", {"mode": "wait"}), ("look", {"mode": "wait"})]), DONE)
    await until(lambda: served.effects(address, "/shout") == 1)
    await cancelled(served, address)
    assert (await served.states(address))["t1.0"] == "outcome_unknown"
    assert len(served.sent_to_model(address)) == 1
    served.desk.world.go_on.set()


@pytest.mark.parametrize("late", [Kind.TURNS, Kind.MEMORY, Kind.APPROVALS])
async def test_a_cancel_ends_the_turn_stopped_whatever_it_waits_for(desk: Desk, temporal: Client, late: Kind) -> None:
    """The work that the cancel meets waits for a worker, so that it surely meets it; of turns it is the first task."""
    own = new_id()[-8:]
    routing = Routing(**{kind.value: f"{Routing.spread().queue(kind)}-{own}" for kind in Kind})
    at = Desk(desk.deps, desk.world, desk.model, desk.people, routing, desk.owner_url)
    served = Served(at, temporal)
    async with AsyncExitStack() as stack:
        await serve(stack, at, tuple(kind for kind in ALL_KINDS if kind is not late))
        address = await served.begin(Line("asking", [PAY]), DONE)
        for _ in range(250 if late is not Kind.TURNS else 0):
            described = await served.handle(address).describe()
            pending = described.raw_description.pending_activities
            if pending and pending[0].activity_type.name.startswith(late.value):
                break
            await asyncio.sleep(0.02)
        ending = asyncio.create_task(cancelled(served, address))
        await asyncio.sleep(0.3)
        await serve(stack, at, (late,))
        await ending
        approvals = await at.rows("SELECT status FROM approvals WHERE turn_id = $1", address.turn_id)
        assert {row["status"] for row in approvals} <= {"cancelled"}
