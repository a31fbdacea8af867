"""Messages that join a turn under way: each is heard once, by one model call or as a turn of its own."""

import asyncio
import random
from collections.abc import Awaitable
from typing import Any

import pytest

from perdure.activities.model import ModelActivities
from perdure.contracts.calls import ModelReply
from perdure.contracts.errors import CallerError
from perdure.contracts.ids import model_call_id
from perdure.contracts.turns import Finished, FinishRequest, Limits, TurnAddress, TurnStatus
from perdure.core.turns import Caps, OnBusy
from perdure.store.turns.finish import finish
from perdure.store.turns.start import Started, request_stop
from tests.doubles.spoken import Line, script
from tests.harness import Harness, gathered
from tests.scale import sized

MANY = Caps(queue_depth=20, turns_a_user=100_000)
ENDS = (TurnStatus.COMPLETED, TurnStatus.FAILED, TurnStatus.LIMITED, TurnStatus.STOPPED)


async def steer(harness: Harness, to: TurnAddress, text: str = "heard", caps: Caps = MANY) -> Started:
    """A message into the conversation's turn under way; the model answers it with `text`, whatever the step."""
    line = Line(text)
    _, started = await harness.start(
        line, line, line, conversation_id=to.conversation_id, on_busy=OnBusy.STEER, caps=caps
    )
    return started


async def ask(harness: Harness, address: TurnAddress, step: int, *, attempt: int = 1, **given: Any) -> ModelReply:
    """A model call of the turn that is handed its first message alone."""
    call = (await harness.model_call(address)).model_copy(update={"call_id": model_call_id(step)})
    call = call.model_copy(update={"ask": call.ask.model_copy(update=given)})
    return await harness.activity(ModelActivities(harness.deps).complete, call, attempt=attempt)


async def end(
    harness: Harness, address: TurnAddress, status: TurnStatus = TurnStatus.COMPLETED
) -> tuple[Finished, Any]:
    async with harness.db.transaction("local") as tx:
        return await finish(tx, FinishRequest(address=address, status=status))


async def users(harness: Harness, conversation_id: str) -> list[tuple[str, str, str | None]]:
    """The user messages of the transcript, in its order: id, turn, and the model call that took it."""
    sql = "SELECT id::text, turn_id::text, joins FROM messages WHERE conversation_id = $1 AND role = 'user' "
    rows = await harness.rows(sql + "AND in_transcript ORDER BY seq", conversation_id)
    return [(row["id"], row["turn_id"], row["joins"]) for row in rows]


def ids(reply: ModelReply) -> list[str]:
    """The messages that the call heard."""
    return [ref.id for ref in reply.joined]


def said(harness: Harness) -> list[str]:
    """What the last request to the model says in the user's name."""
    return [str(each["content"]) for each in harness.model.seen[-1].messages if each["role"] == "user"]


async def test_a_message_that_joins_is_heard_by_the_next_model_call_behind_what_was_said(harness: Harness) -> None:
    address = await harness.plan()
    before = await users(harness, address.conversation_id)
    started = await steer(harness, address)
    assert (started.turn_id, started.joined, started.note) == (address.turn_id, True, None)
    assert await users(harness, address.conversation_id) == before, "not said yet"
    reply = await ask(harness, address, 2)
    assert ids(reply) == [started.message_id]
    assert reply.message is not None and reply.message.text == "heard"
    assert said(harness)[-1] == script(Line("heard"), Line("heard"), Line("heard"))
    assert (await users(harness, address.conversation_id))[-1] == (started.message_id, address.turn_id, "m2")
    roles = "SELECT array_agg(role ORDER BY seq) FROM messages WHERE turn_id = $1 AND in_transcript"
    assert await harness.value(roles, address.turn_id) == ["user", "assistant", "user", "assistant"]
    joined = "SELECT data, call_id FROM events WHERE turn_id = $1 AND kind = 'message.joined' ORDER BY seq"
    told = await harness.rows(joined, address.turn_id)
    assert [(row["call_id"], row["data"]["heard"]) for row in told] == [(None, False), ("m2", True)]


async def test_a_later_attempt_hears_the_same_and_what_came_meanwhile_and_a_replay_tells_it_again(
    harness: Harness,
) -> None:
    address, _ = await harness.start(Line("x", fails=1), caps=MANY)
    line = Line("once more", fails=1)
    await harness.start(line, conversation_id=address.conversation_id, on_busy=OnBusy.STEER, caps=MANY)
    assert isinstance((await gathered(ask(harness, address, 1)))[0], Exception)
    second = await steer(harness, address, "both")
    reply = await ask(harness, address, 1, attempt=2)
    assert len(reply.joined) == 2 and reply.joined[1].id == second.message_id
    assert len(said(harness)) == 3 and reply.message is not None and reply.message.text == "both"
    assert {joins for _, _, joins in await users(harness, address.conversation_id)} == {None, "m1"}
    assert (await ask(harness, address, 1, attempt=3)).joined == reply.joined


@pytest.mark.parametrize("deaf", [{"stage": "own"}, {"deaf": True}], ids=str)
async def test_messages_are_heard_in_their_order_once_by_a_call_that_listens(
    harness: Harness, deaf: dict[str, Any]
) -> None:
    address, _ = await harness.start(*[Line("one")] * 4, caps=MANY)
    first = [(await steer(harness, address, str(number))).message_id for number in range(3)]
    assert ids(await ask(harness, address, 1, **deaf)) == [], "a call of the graph's own leaves it to the next"
    assert ids(await ask(harness, address, 2)) == first
    second = [(await steer(harness, address, str(number))).message_id for number in range(2)]
    assert ids(await ask(harness, address, 3)) == second
    assert ids(await ask(harness, address, 4)) == []
    assert [each[0] for each in await users(harness, address.conversation_id)][1:] == [*first, *second]


@pytest.mark.parametrize("status", ENDS)
async def test_what_no_call_has_heard_becomes_one_queued_turn_at_whatever_end(
    harness: Harness, status: TurnStatus
) -> None:
    address, _ = await harness.start(Line("one"), caps=MANY)
    assert ids(await ask(harness, address, 1)) == []
    late = [(await steer(harness, address, text)).message_id for text in ("first", "second")]
    where = address.conversation_id
    behind, _ = await harness.start(Line("behind"), conversation_id=where, on_busy=OnBusy.QUEUE, caps=MANY)
    finished, note = await end(harness, address, status)
    left = finished.admitted_turn_id
    assert left is not None and left not in (address.turn_id, behind.turn_id) and note is not None
    old, row = [(await harness.rows("SELECT * FROM turns WHERE id = $1", each))[0] for each in (address.turn_id, left)]
    assert (row["status"], str(row["message_id"])) == ("accepted", late[0])
    for kept in ("user_id", "agent_id", "agent_version", "topology", "routing", "limits", "metadata"):
        assert row[kept] == old[kept]
    done = await harness.value("SELECT data FROM events WHERE turn_id = $1 AND kind = 'done'", address.turn_id)
    assert done["left_over"] == left
    assert await harness.kinds(left) == ["queued", "ready"]
    continued = address.model_copy(update={"turn_id": left})
    assert ids(await ask(harness, continued, 1)) == [late[1]]
    assert said(harness)[-2:] == [script(*[Line(text)] * 3) for text in ("first", "second")]
    assert [each[0] for each in await users(harness, where)][-2:] == late
    assert (await end(harness, continued))[0].admitted_turn_id == behind.turn_id


async def test_a_left_over_turn_has_no_limit_that_was_raised_for_the_one_before(harness: Harness) -> None:
    address, _ = await harness.start(Line("one"), limits=Limits(max_tokens=500), caps=MANY)
    await steer(harness, address)
    raised = await harness.value("SELECT limits FROM turns WHERE id = $1", address.turn_id) | {"max_tokens": 10_000_000}
    await harness.write("UPDATE turns SET limits = $2 WHERE id = $1", address.turn_id, raised)
    finished, _ = await end(harness, address)
    limits = await harness.value("SELECT limits FROM turns WHERE id = $1", finished.admitted_turn_id)
    assert limits["max_tokens"] == 100_000


async def test_messages_that_wait_count_as_the_queue_does_and_a_turn_that_stops_takes_none(harness: Harness) -> None:
    address, _ = await harness.start(Line("one"), caps=MANY)
    few = Caps(queue_depth=2, turns_a_user=100_000)
    await steer(harness, address, caps=few)
    queued, _ = await harness.start(
        Line("two"), conversation_id=address.conversation_id, on_busy=OnBusy.QUEUE, caps=few
    )
    for on_busy in (OnBusy.STEER, OnBusy.QUEUE):
        with pytest.raises(CallerError) as refused:
            await harness.start(Line("three"), conversation_id=address.conversation_id, on_busy=on_busy, caps=few)
        assert (refused.value.code, refused.value.http) == ("queue_full", 429)
    async with harness.db.transaction("local") as tx:
        await request_stop(tx, address.turn_id, harness.people["requester"].user_id)
    late = await steer(harness, address)
    assert not late.joined and late.status is TurnStatus.QUEUED
    finished, _ = await end(harness, address, TurnStatus.STOPPED)
    assert finished.admitted_turn_id not in (None, late.turn_id, queued.turn_id), "what joined first is the oldest"


@pytest.mark.sized
async def test_a_message_and_the_end_of_its_turn_at_once_never_lose_it_nor_hear_it_twice(harness: Harness) -> None:
    """Steers against model calls against the end, in any order that the locks allow."""
    chance = random.Random(6)

    async def late(work: Awaitable[object]) -> object:
        await asyncio.sleep(chance.random() / 50)
        return await work

    for round_number in range(sized(12, 3)):
        address, _ = await harness.start(Line("one"), Line("two"), caps=MANY)
        sent = [late(steer(harness, address, f"{round_number}.{each}")) for each in range(3)]
        answers = await gathered(*sent, late(ask(harness, address, 1)), late(end(harness, address)))
        assert not [each for each in answers if isinstance(each, BaseException)], answers
        conversation_id, turn_id = address.conversation_id, address.turn_id
        active = "SELECT active_turn_id::text FROM conversations WHERE id = $1"
        while turn_id:  # all turns of the conversation, one after the other
            current = address.model_copy(update={"turn_id": turn_id})
            await ask(harness, current, 2)
            turn_id = (await end(harness, current))[0].admitted_turn_id or await harness.value(active, conversation_id)
        steered = [each.message_id for each in answers if isinstance(each, Started)]
        transcript = [each[0] for each in await users(harness, conversation_id)]
        assert len(steered) == 3 and sorted(transcript[1:]) == sorted(steered), "each is in the transcript once"
        waiting = "SELECT count(*) FROM messages WHERE conversation_id = $1 AND joins = ''"
        assert await harness.value(waiting, conversation_id) == 0
