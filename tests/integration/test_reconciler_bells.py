"""Nothing is left behind: bells that were lost, decisions that nobody heard, stops that came too early."""

from itertools import pairwise

from structlog.testing import capture_logs
from temporalio.client import Client

from perdure.contracts.ids import turn_workflow_id
from perdure.contracts.turns import TurnAddress, TurnStatus
from perdure.core.approvals.decisions import Decision
from perdure.store.turns.start import request_stop
from perdure.worker.reconcile import Reconciler
from tests.desk import Desk
from tests.doubles.spoken import Line


async def test_a_decided_turn_whose_bell_was_lost_is_rung_again(desk: Desk, reconciler: Reconciler) -> None:
    address = await desk.plan(("pay", {}), ("post", {}))
    first, second = await desk.open(address, "t1.0", "t1.1")
    await desk.decide(first.request_id, Decision.REJECT, comment="no")
    await desk.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    await reconciler.once()
    assert not await bells(desk, address), "one of the round is still open, and nothing may start"
    await desk.decide(second.request_id)
    await desk.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    await reconciler.once()
    await reconciler.once()
    assert await bells(desk, address) == 1, "rung once, not at every pass"


async def test_a_call_that_may_start_is_rung_for_while_others_of_its_round_still_wait(
    desk: Desk, reconciler: Reconciler
) -> None:
    address = await desk.plan(("pay", {}), ("post", {}))
    first, _ = await desk.open(address, "t1.0", "t1.1")
    await desk.decide(first.request_id)
    await desk.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    await reconciler.once()
    await reconciler.once()
    assert await bells(desk, address) == 1
    await desk.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    await desk.run_tool(address)
    await desk.write(
        "UPDATE turns SET status = $2, rung_at = now() - interval '1 hour' WHERE id = $1",
        address.turn_id,
        TurnStatus.AWAITING_APPROVAL.value,
    )
    await reconciler.once()
    assert not await bells(desk, address), "it has run; the other waits"


async def test_a_decided_turn_that_never_goes_on_is_rung_ever_more_seldom_and_told_of_once(
    desk: Desk, reconciler: Reconciler
) -> None:
    address = await desk.plan(("pay", {}))
    (request,) = await desk.open(address, "t1.0")
    await desk.decide(request.request_id)
    rung_at = []
    with capture_logs() as said:
        for minute in range(80):
            await desk.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
            await reconciler.once()
            if await bells(desk, address):
                rung_at.append(minute)
            await passed(desk, address, "61 seconds")
    gaps = [after - before for before, after in pairwise(rung_at)]
    assert rung_at[:2] == [0, 1], "the first ones come soon"
    assert gaps == sorted(gaps)
    assert gaps[-3:] == [15, 15, 15], "in the end each quarter of an hour"
    told = [line for line in said if line["event"] == "decided_turn_still_waits"]
    assert [(line["where"], line["log_level"]) for line in told] == [(address.turn_id, "error")]


async def passed(desk: Desk, address: TurnAddress, span: str) -> None:
    """Time passes for a turn."""
    await desk.write(f"UPDATE turns SET rung_at = rung_at - interval '{span}' WHERE id = $1", address.turn_id)
    await desk.write(
        f"UPDATE approvals SET decided_at = decided_at - interval '{span}' WHERE turn_id = $1", address.turn_id
    )


async def test_a_turn_rung_in_vain_is_rung_at_once_for_its_next_decision(desk: Desk, reconciler: Reconciler) -> None:
    address = await desk.plan(("pay", {}))
    (request,) = await desk.open(address, "t1.0")
    await desk.decide(request.request_id)
    await desk.write(
        "UPDATE approvals SET decided_at = decided_at - interval '1 day' WHERE turn_id = $1", address.turn_id
    )
    await desk.write("UPDATE turns SET rung_at = now() - interval '2 minutes' WHERE id = $1", address.turn_id)
    await desk.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    await reconciler.once()
    assert not await bells(desk, address), "it has been rung for this one, long after it"
    await desk.write("UPDATE approvals SET decided_at = now() WHERE turn_id = $1", address.turn_id)
    await reconciler.once()
    assert await bells(desk, address) == 1


async def test_an_overdue_turn_is_rung(desk: Desk, reconciler: Reconciler) -> None:
    address = await desk.plan(("pay", {}))
    (request,) = await desk.open(address, "t1.0")
    await desk.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    await reconciler.once()
    assert not await bells(desk, address)
    await desk.write("UPDATE approvals SET expires_at = now() WHERE id = $1", request.request_id)
    await reconciler.once()
    assert await bells(desk, address) == 1


async def test_a_turn_that_waits_for_a_person_to_settle_an_effect_is_not_rung_until_it_is_settled(
    desk: Desk, reconciler: Reconciler
) -> None:
    address = await desk.approved(("post", {"mode": "break"}))
    await desk.run_tool(address)
    await desk.write("UPDATE turns SET status = $2 WHERE id = $1", address.turn_id, TurnStatus.AWAITING_APPROVAL.value)
    await desk.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    await reconciler.once()
    assert not await bells(desk, address)
    await desk.write("UPDATE tool_calls SET state = 'done' WHERE turn_id = $1", address.turn_id)
    await reconciler.once()
    assert await bells(desk, address) == 1


async def bells(desk: Desk, address: TurnAddress) -> int:
    """Rings for the turn in the outbox."""
    rows = await desk.rows("SELECT kind FROM outbox WHERE turn_id = $1 AND kind = 'ring'", address.turn_id)
    return len(rows)


async def test_a_stop_that_came_before_the_workflow_was_there_still_stops_it(
    desk: Desk, reconciler: Reconciler, temporal: Client
) -> None:
    """The bell finds no workflow; then the start is delivered as it was written down, without the stop."""
    address, started = await desk.start(Line("hi"))
    async with desk.db.transaction("local") as tx:
        _, _, note = await request_stop(tx, address.turn_id, desk.people["requester"].user_id)
    assert note is not None and await desk.deps.doorbell.deliver_soon(note)
    assert started.note is not None and await desk.deps.doorbell.deliver_soon(started.note)
    await reconciler.once()
    assert not await stops(desk, address), "it has only just been asked to"
    await desk.write(
        "UPDATE turns SET stop_requested_at = stop_requested_at - interval '11 seconds' WHERE id = $1", address.turn_id
    )
    for _ in range(3):
        await reconciler.once()
        assert await stops(desk, address) == 1, "rung once, not at every pass"
    await desk.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    await reconciler.once()
    assert not await stops(desk, address)
    await desk.write("UPDATE turns SET rung_at = now() - interval '61 seconds' WHERE id = $1", address.turn_id)
    await reconciler.once()
    assert await stops(desk, address) == 1
    await temporal.get_workflow_handle(turn_workflow_id(address.turn_id)).terminate()


async def stops(desk: Desk, address: TurnAddress) -> int:
    """Stops for the turn in the outbox."""
    return len(await desk.rows("SELECT FROM outbox WHERE turn_id = $1 AND kind = 'stop'", address.turn_id))
