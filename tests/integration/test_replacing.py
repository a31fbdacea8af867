"""Turns that replace the one under way: it ends on record, and they are the next, whatever happens meanwhile."""

import asyncio
import random
from collections.abc import Awaitable
from typing import Any

import pytest

from perdure.contracts.errors import CallerError
from perdure.contracts.messages import WindowPolicy
from perdure.contracts.turns import ENDED, FinishAsk, Finished, TurnAddress, TurnStatus
from perdure.core.approvals.decisions import Decision
from perdure.core.turns import Caps, OnBusy
from perdure.store.delivery.outbox import Note, Wake
from perdure.store.turns import conversations
from perdure.store.turns.context import said_messages
from perdure.store.turns.finish import finish
from perdure.store.turns.start import Started, request_stop
from perdure.store.turns.views import get_turn
from tests.desk import Desk, gathered
from tests.doubles.spoken import Line
from tests.scale import sized

MANY = Caps(queue_depth=20, turns_a_user=100_000)


async def another(desk: Desk, beside: TurnAddress, on_busy: OnBusy, **given: Any) -> Started:
    """Another message into the conversation."""
    start = desk.start(
        Line("another"), conversation_id=beside.conversation_id, on_busy=on_busy, **({"caps": MANY} | given)
    )
    return (await start)[1]


async def end(desk: Desk, beside: TurnAddress, turn_id: str, status: TurnStatus) -> tuple[Finished, Note | None]:
    """Finish a turn of the conversation."""
    async with desk.db.transaction("local") as tx:
        address = beside.model_copy(update={"turn_id": turn_id})
        return await finish(tx, FinishAsk(address=address, status=status))


async def row(desk: Desk, turn_id: str) -> dict[str, Any]:
    """A turn's row."""
    return dict((await desk.rows("SELECT * FROM turns WHERE id = $1", turn_id))[0])


async def test_the_turn_under_way_is_asked_to_stop_and_its_end_admits_the_one_that_replaces_it(desk: Desk) -> None:
    old, _ = await desk.start(Line("one"), caps=MANY)
    queued = await another(desk, old, OnBusy.QUEUE)
    new = await another(desk, old, OnBusy.REPLACE)
    assert (new.status, new.gives_way) == (TurnStatus.QUEUED, old)
    assert new.note is not None and (new.note.kind, new.note.turn_id) == (Wake.STOP, old.turn_id)
    before = await row(desk, old.turn_id)
    assert before["stop_requested_at"] is not None and str(before["replaced_by"]) == new.turn_id
    finished, note = await end(desk, old, old.turn_id, TurnStatus.STOPPED)
    assert (finished.status, finished.admitted_turn_id) == (TurnStatus.REPLACED, new.turn_id)
    assert note is not None and note.kind is Wake.START
    told = await desk.rows("SELECT kind, data FROM events WHERE turn_id = $1 ORDER BY seq", old.turn_id)
    assert [each["kind"] for each in told][-2:] == ["stopped", "done"]
    assert told[-1]["data"]["status"] == "replaced" and told[-1]["data"]["replaced_by"] == new.turn_id
    async with desk.db.transaction("local") as tx:
        shown = await get_turn(tx, old.turn_id, None)
    assert (shown["status"], shown["replaced_by"]) == ("replaced", new.turn_id)
    finished, _ = await end(desk, old, new.turn_id, TurnStatus.COMPLETED)
    assert finished.admitted_turn_id == queued.turn_id, "who waited before goes on after it"


async def test_what_waits_for_a_person_is_cancelled_on_record_and_no_decision_brings_it_back(desk: Desk) -> None:
    old = await desk.plan(("post", {"text": "x"}), ("post", {"text": "y"}))
    waiting, approved = await desk.open(old, "t1.0", "t1.1")
    await desk.decide(approved.request_id)
    new = await another(desk, old, OnBusy.REPLACE)
    assert (await desk.run_tool(old, "t1.1")).problem is not None, "nothing begins once it gives way"
    await end(desk, old, old.turn_id, TurnStatus.STOPPED)
    for request in (waiting, approved):
        found = await desk.rows("SELECT status FROM approvals WHERE id = $1", request.request_id)
        assert found[0]["status"] == "cancelled"
        kinds = await desk.rows("SELECT kind FROM audit WHERE subject = $1 ORDER BY id", request.request_id)
        assert kinds[-1]["kind"] == "approval.cancelled"
    with pytest.raises(CallerError) as refused:
        await desk.decide(waiting.request_id)
    assert refused.value.http == 409
    assert not desk.world.effects
    assert (await row(desk, new.turn_id))["status"] == "accepted"


async def test_of_two_that_replace_the_same_turn_the_last_one_runs(desk: Desk) -> None:
    old, _ = await desk.start(Line("one"), caps=MANY)
    first, second = await another(desk, old, OnBusy.REPLACE), await another(desk, old, OnBusy.REPLACE)
    ended = await row(desk, first.turn_id)
    assert (ended["status"], str(ended["replaced_by"])) == ("replaced", second.turn_id)
    assert await desk.kinds(first.turn_id) == ["queued", "stopped", "done"]
    finished, _ = await end(desk, old, old.turn_id, TurnStatus.STOPPED)
    assert finished.admitted_turn_id == second.turn_id
    assert await desk.value("SELECT count(*) FROM outbox WHERE turn_id = $1", first.turn_id) == 0


async def test_what_was_said_to_a_turn_that_never_began_stays_with_what_became_of_it(desk: Desk) -> None:
    old, _ = await desk.start(Line("one"), caps=MANY)
    replaced = await another(desk, old, OnBusy.REPLACE)
    waits = await another(desk, old, OnBusy.QUEUE)
    stopped, new = await another(desk, old, OnBusy.QUEUE), await another(desk, old, OnBusy.REPLACE)

    async def shown() -> list[tuple[str, str, bool]]:
        async with desk.db.transaction("local") as tx:
            found, _ = await conversations.list_messages(tx, old.conversation_id, 50, 0)
        return [(str(each["turn_id"]), str(each["turn_status"]), bool(each["heard"])) for each in found]

    first = (replaced.turn_id, "replaced", False)
    assert await shown() == [(old.turn_id, "accepted", True), first], "what still waits is not said yet"
    async with desk.db.transaction("local") as tx:
        await request_stop(tx, stopped.turn_id, desk.people["requester"].user_id)
    await end(desk, old, old.turn_id, TurnStatus.STOPPED)
    assert await shown() == [
        (old.turn_id, "replaced", True), first, (stopped.turn_id, "stopped", False), (new.turn_id, "accepted", True)
    ]  # fmt: skip
    await end(desk, old, new.turn_id, TurnStatus.COMPLETED)
    call = await desk.model_call(old.model_copy(update={"turn_id": waits.turn_id}))
    async with desk.db.transaction("local") as tx:
        through = await tx.fetchval("SELECT through_seq FROM turns WHERE id = $1", waits.turn_id)
        said = await said_messages(tx, call, through, WindowPolicy(), {})
    assert len(said) == 3, "a model is told of the old turn, the new one and its own, and of nothing that nobody heard"


async def test_a_turn_that_completes_all_the_same_is_completed_and_the_other_follows_it(desk: Desk) -> None:
    old, _ = await desk.start(Line("one"), caps=MANY)
    new = await another(desk, old, OnBusy.REPLACE)
    finished, _ = await end(desk, old, old.turn_id, TurnStatus.COMPLETED)
    assert (finished.status, finished.admitted_turn_id) == (TurnStatus.COMPLETED, new.turn_id)


async def test_a_replacement_that_is_stopped_itself_leaves_its_place_to_those_that_wait(desk: Desk) -> None:
    old, _ = await desk.start(Line("one"), caps=MANY)
    queued, new = await another(desk, old, OnBusy.QUEUE), await another(desk, old, OnBusy.REPLACE)
    async with desk.db.transaction("local") as tx:
        await request_stop(tx, new.turn_id, desk.people["requester"].user_id)
    assert (await row(desk, new.turn_id))["status"] == "stopped"
    finished, _ = await end(desk, old, old.turn_id, TurnStatus.STOPPED)
    assert (finished.status, finished.admitted_turn_id) == (TurnStatus.REPLACED, queued.turn_id)


async def test_what_had_joined_the_old_turn_runs_after_the_one_that_replaced_it(desk: Desk) -> None:
    old, _ = await desk.start(Line("one"), caps=MANY)
    joined, new = await another(desk, old, OnBusy.STEER), await another(desk, old, OnBusy.REPLACE)
    finished, _ = await end(desk, old, old.turn_id, TurnStatus.STOPPED)
    assert finished.admitted_turn_id == new.turn_id
    finished, _ = await end(desk, old, new.turn_id, TurnStatus.COMPLETED)
    message_id = await desk.value("SELECT message_id FROM turns WHERE id = $1", finished.admitted_turn_id)
    assert str(message_id) == joined.message_id


async def test_whoever_has_all_the_turns_one_may_have_can_still_replace_one(desk: Desk) -> None:
    conversation_id = await desk.conversation(by="reviewer")
    open_now = await desk.value(
        "SELECT count(*) FROM turns WHERE ended_at IS NULL AND user_id = $1", desk.people["reviewer"].user_id
    )
    caps = Caps(queue_depth=0, turns_a_user=open_now + 1)
    given: dict[str, Any] = {"conversation_id": conversation_id, "by": "reviewer", "caps": caps}
    await desk.start(Line("one"), **given)
    with pytest.raises(CallerError):
        await desk.start(Line("two"), on_busy=OnBusy.QUEUE, **given)
    for _ in range(3):
        _, started = await desk.start(Line("two"), on_busy=OnBusy.REPLACE, **given)
        assert started.status is TurnStatus.QUEUED


@pytest.mark.sized
async def test_replacements_steers_stops_and_ends_at_once_leave_one_turn_after_the_other(desk: Desk) -> None:
    """Whatever comes first: no deadlock, one active turn, every message in the transcript of one turn or replaced."""
    chance = random.Random(66)

    async def late(work: Awaitable[object]) -> object:
        await asyncio.sleep(chance.random() / 50)
        return await work

    async def stopped(address: TurnAddress) -> None:
        async with desk.db.transaction("local") as tx:
            await request_stop(tx, address.turn_id, desk.people["requester"].user_id)

    for _ in range(sized(12, 3)):
        old, _ = await desk.start(Line("one"), caps=MANY)
        ways = [OnBusy.REPLACE, OnBusy.STEER, OnBusy.REPLACE, OnBusy.QUEUE, OnBusy.REPLACE]
        answers = await gathered(
            *(late(another(desk, old, way)) for way in ways),
            late(stopped(old)),
            late(end(desk, old, old.turn_id, TurnStatus.STOPPED)),
        )
        assert not [each for each in answers if isinstance(each, BaseException)], answers
        while turn_id := await desk.value(
            "SELECT active_turn_id FROM conversations WHERE id = $1", old.conversation_id
        ):
            await end(desk, old, str(turn_id), TurnStatus.STOPPED)
        rows = await desk.rows("SELECT id, status FROM turns WHERE conversation_id = $1", old.conversation_id)
        assert {each["status"] for each in rows} <= {status.value for status in ENDED}, "nobody is left behind"
        messages = await desk.value(
            "SELECT count(*) FROM messages WHERE conversation_id = $1 AND role = 'user'", old.conversation_id
        )
        assert messages == 1 + len(ways)


@pytest.mark.sized
async def test_a_decision_and_a_replacement_at_once_never_run_the_call_and_leave_the_approval_waiting(
    desk: Desk,
) -> None:
    for _ in range(sized(6, 2)):
        old = await desk.plan(("post", {"text": "z"}))
        (request,) = await desk.open(old, "t1.0")
        answers = await gathered(
            desk.decide(request.request_id, Decision.APPROVE), another(desk, old, OnBusy.REPLACE), desk.run_tool(old)
        )
        assert isinstance(answers[1], Started)
        await end(desk, old, old.turn_id, TurnStatus.STOPPED)
        status = await desk.value("SELECT status FROM approvals WHERE id = $1", request.request_id)
        state = (await desk.call_row(old))["state"]
        undone = {("cancelled", "planned"), ("cancelled", "denied")}  # denied: asked for before the decision
        assert (status, state) in {*undone, ("done", "done"), ("outcome_unknown", "outcome_unknown")}
