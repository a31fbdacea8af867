"""A cancel from Temporal's side, by hand or by a batch job: the turn ends as after a stop, with its records closed."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from temporalio.client import Client

from perdure.contracts.turns import Kind, Routing, TurnAddress, TurnStatus
from perdure.core.turns import OnBusy
from perdure.store.turns.start import request_stop
from tests.desk import Desk, until
from tests.doubles.spoken import Line
from tests.replay.recording import run_of
from tests.replay.stopping import CONFIRM, silent
from tests.served import ALL_KINDS, DONE, PAY, Served, apart, serve


async def cancelled(served: Served, address: TurnAddress) -> None:
    """Cancel the turn's workflow; the turn ends as stopped, without a problem, and so does its last run."""
    await served.handle(address).cancel()
    row = await served.until(address, TurnStatus.STOPPED, TurnStatus.FAILED)
    assert (row["status"], row["problem"]) == ("stopped", None)
    assert await served.handle(address).result() == "stopped"
    assert (await served.desk.kinds(address.turn_id))[-2:] == ["stopped", "done"]
    assert await ends(served, address) == [("turn.cancelled", False)]
    assert CONFIRM not in [name for history in await served.runs(address) for name in run_of(history).called]


async def ends(served: Served, address: TurnAddress) -> list[tuple[str, bool]]:
    """What the audit says of the turn's end, with whether it names somebody."""
    rows = await served.desk.rows(
        "SELECT kind, actor FROM audit WHERE turn_id = $1 AND kind LIKE 'turn.%' ORDER BY id", address.turn_id
    )
    return [(row["kind"], row["actor"] is not None) for row in rows]


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


async def test_a_turn_that_was_asked_to_stop_and_is_cancelled_too_was_stopped_by_whoever_asked(served: Served) -> None:
    address = await silent(served)
    async with served.desk.db.transaction("local") as tx:
        _, _, note = await request_stop(tx, address.turn_id, served.desk.people["requester"].user_id)
    assert note is not None
    await asyncio.gather(served.desk.deps.doorbell.deliver_soon(note), served.handle(address).cancel())
    await served.until(address, TurnStatus.STOPPED)
    assert await ends(served, address) == [("turn.stop_requested", True)]


async def stopped(served: Served, address: TurnAddress) -> None:
    """Ask for a stop; the turn ends as stopped."""
    await served.stop(address)
    row = await served.until(address, TurnStatus.STOPPED, TurnStatus.FAILED)
    assert (row["status"], row["problem"]) == ("stopped", None)
    assert await served.handle(address).result() == "stopped"


@pytest.mark.parametrize(
    ("end", "late"),
    [(cancelled, each) for each in (Kind.TURNS, Kind.MEMORY, Kind.APPROVALS)]
    + [(stopped, each) for each in (Kind.MEMORY, Kind.APPROVALS)],
)
async def test_a_cancel_and_a_stop_end_the_turn_whatever_it_waits_for(
    desk: Desk, temporal: Client, end: Callable[[Served, TurnAddress], Awaitable[None]], late: Kind
) -> None:
    """The work that the end meets waits for a worker, so that it surely meets it; of turns it is the first task."""
    served = apart(desk, temporal, Routing.spread())
    at = served.desk
    async with AsyncExitStack() as stack:
        await serve(stack, at, tuple(kind for kind in ALL_KINDS if kind is not late))
        address = await served.begin(Line("asking", [PAY]), DONE)
        for _ in range(250 if late is not Kind.TURNS else 0):
            described = await served.handle(address).describe()
            pending = described.raw_description.pending_activities
            if pending and pending[0].activity_type.name.startswith(late.value):
                break
            await asyncio.sleep(0.02)
        ending = asyncio.ensure_future(end(served, address))
        await asyncio.sleep(0.3)
        await serve(stack, at, (late,))
        await ending
        approvals = await at.rows("SELECT status FROM approvals WHERE turn_id = $1", address.turn_id)
        assert {row["status"] for row in approvals} <= {"cancelled"}
