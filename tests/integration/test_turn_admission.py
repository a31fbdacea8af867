"""Starting turns: one at a time in a conversation; others wait, are refused, replace it or join it."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import REGISTRY

from perdure.activities.model import ModelActivities
from perdure.contracts.calls import ModelReply
from perdure.contracts.errors import CallerError
from perdure.contracts.ids import model_call_id
from perdure.contracts.messages import WindowPolicy
from perdure.contracts.turns import ENDED, Finished, Limits, TurnAddress, TurnStatus
from perdure.core.turns import Caps, OnBusy
from perdure.store.calls.model_calls import PAST_OF_TURN, PastMessages
from perdure.store.delivery.outbox import Note, Wake
from perdure.store.turns import conversations
from perdure.store.turns.context import Window, prompt_messages
from perdure.store.turns.start import StartedTurn
from perdure.store.turns.views import get_turn
from tests.conftest import Urls, as_owner
from tests.doubles.message_script import Line, script
from tests.eventually import until
from tests.harness import Harness, gathered
from tests.integration.conftest import Api, in_transaction
from tests.scale import sized

MANY = Caps(queue_depth=20, turns_a_user=100_000)


async def end(
    harness: Harness, address: TurnAddress, status: TurnStatus = TurnStatus.COMPLETED, turn_id: str = "", **given: Any
) -> tuple[Finished, Note | None]:
    address = address.model_copy(update={"turn_id": turn_id or address.turn_id})
    return await harness.finish(address, status, **given)


async def test_of_many_simultaneous_starts_in_a_conversation_one_is_admitted(harness: Harness) -> None:
    conversation_id = await harness.conversation()
    starts = (harness.start(Line(str(n)), conversation_id=conversation_id, caps=MANY) for n in range(24))
    answers = await gathered(*starts)
    started = [each for each in answers if isinstance(each, tuple)]
    refused = [each for each in answers if isinstance(each, CallerError)]
    assert (len(started), len(refused)) == (1, 23)
    (address, turn) = started[0]
    assert turn.status is TurnStatus.ACCEPTED and turn.note is not None and turn.note.kind is Wake.START
    told = {(each.code, each.http, each.details["turn_id"]) for each in refused}
    assert told == {("conversation_busy", 409, address.turn_id)}
    assert await harness.value("SELECT count(*) FROM messages WHERE conversation_id = $1", conversation_id) == 1
    assert await harness.value("SELECT count(*) FROM outbox WHERE turn_id = $1", address.turn_id) == 1


async def test_a_queue_holds_twenty_turns_and_runs_them_in_order(harness: Harness) -> None:
    conversation_id = await harness.conversation()
    given: dict[str, Any] = {"conversation_id": conversation_id, "on_busy": OnBusy.QUEUE, "caps": MANY}
    answers = await gathered(*(harness.start(Line(str(n)), **given) for n in range(24)))
    assert Counter(each.code for each in answers if isinstance(each, CallerError)) == {"queue_full": 3}
    statuses = Counter(each[1].status for each in answers if isinstance(each, tuple))
    assert statuses == {TurnStatus.ACCEPTED: 1, TurnStatus.QUEUED: 20}
    in_order = "SELECT id, status FROM turns WHERE conversation_id = $1 ORDER BY created_at, id"
    rows = await harness.rows(in_order, conversation_id)
    waiting = [str(row["id"]) for row in rows if row["status"] == "queued"]
    active = next(str(row["id"]) for row in rows if row["status"] == "accepted")
    ran = []
    while active:
        address = TurnAddress(tenant_id="local", conversation_id=conversation_id, turn_id=active)
        if active := (await end(harness, address))[0].admitted_turn_id or "":
            ran.append(active)
            found = await harness.turn(active)
            seq = await harness.value("SELECT seq FROM messages WHERE id = $1", found["message_id"])
            assert (found["status"], found["through_seq"]) == ("accepted", seq - 1)
            assert await harness.value("SELECT count(*) FROM outbox WHERE turn_id = $1 AND kind = 'start'", active) == 1
    assert ran == waiting
    assert await harness.value("SELECT active_turn_id FROM conversations WHERE id = $1", conversation_id) is None


async def test_a_user_has_a_maximum_of_open_turns(harness: Harness) -> None:
    open_now = await harness.value("SELECT count(*) FROM turns WHERE ended_at IS NULL")
    caps = Caps(turns_a_user=open_now + 1)
    address, _ = await harness.start(Line("last"), caps=caps)
    with pytest.raises(CallerError) as refused:
        await harness.start(Line("one more"), caps=caps)
    assert (refused.value.code, refused.value.http) == ("too_many_turns", 429)
    assert (refused.value.details["open"], refused.value.details["waiting"]) == (open_now + 1, 0)
    await harness.write("UPDATE turns SET status = 'awaiting_approval' WHERE id = $1", address.turn_id)
    with pytest.raises(CallerError) as refused:
        await harness.start(Line("one more"), caps=caps)
    assert refused.value.details["waiting"] == 1
    await end(harness, address)
    await harness.start(Line("again"), caps=caps)


async def test_a_start_that_waits_for_another_of_its_user_does_not_hold_its_conversation(harness: Harness) -> None:
    conversation_id, person = await harness.conversation(), harness.people["requester"]
    async with harness.db.transaction("local") as tx:
        await tx.execute("SELECT FROM users WHERE id = $1 FOR NO KEY UPDATE", person.user_id)
        starting = asyncio.create_task(harness.start(Line("hi"), conversation_id=conversation_id, caps=MANY))
        await until(lambda: tx.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))
        assert not starting.done(), "it does not wait for its user"
        await harness.write("SELECT FROM conversations WHERE id = $1 FOR UPDATE NOWAIT", conversation_id)
        await harness.conversation()  # rows that name the user are still written
    await starting


@asynccontextmanager
async def no_commit(urls: Urls) -> AsyncIterator[None]:
    """The insert of such a turn fails at the commit."""
    async with as_owner(urls.owner) as owner:
        await owner.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$; "
            "CREATE CONSTRAINT TRIGGER refused AFTER INSERT ON turns DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
        yield
        await owner.execute("DROP TRIGGER refused ON turns; DROP FUNCTION refuse()")


def counted() -> float:
    """The number of started turns of the shipped agent, by this process's metrics."""
    return REGISTRY.get_sample_value("perdure_turns_started_total", {"agent": "refunds"}) or 0.0


async def begin(api: Api, how: str, key: str) -> int:
    async with api.client("admin") as client:
        headers = {"Idempotency-Key": key}
        if how == "execute":
            body = {"agent": "refunds", "message": "/echo hi"}
            return (await client.post("/v1/execute", headers=headers, json=body)).status_code
        created = {"Idempotency-Key": f"conversation of {key}"}
        made = await client.post("/v1/conversations", headers=created, json={"agent": "refunds"})
        path = f"/v1/conversations/{made.json()['id']}/turns"
        return (await client.post(path, headers=headers, json={"message": "/echo hi"})).status_code


@pytest.mark.parametrize("how", ["turns", "execute"])
async def test_a_start_is_counted_once_it_is_committed_however_often_it_is_sent(api: Api, urls: Urls, how: str) -> None:
    before = counted()
    async with no_commit(urls):
        assert await begin(api, how, f"refused {how}") >= 500
    assert counted() == before
    for _ in range(3):
        assert await begin(api, how, f"again {how}") < 300
    assert counted() == before + 1


async def another(harness: Harness, beside: TurnAddress, on_busy: OnBusy, **given: Any) -> StartedTurn:
    given = {"conversation_id": beside.conversation_id, "caps": MANY, **given}
    return (await harness.start(Line("another"), on_busy=on_busy, **given))[1]


async def late(chance: random.Random, work: Awaitable[object]) -> object:
    await asyncio.sleep(chance.random() / 50)
    return await work


async def test_the_open_turn_is_stopped_and_its_end_admits_the_replacement(harness: Harness) -> None:
    old, _ = await harness.start(Line("one"), caps=MANY)
    queued = await another(harness, old, OnBusy.QUEUE)
    new = await another(harness, old, OnBusy.REPLACE)
    assert (new.status, new.gives_way) == (TurnStatus.QUEUED, old)
    assert new.note is not None and (new.note.kind, new.note.turn_id) == (Wake.STOP, old.turn_id)
    before = await harness.turn(old.turn_id)
    assert before["stop_requested_at"] is not None and str(before["replaced_by"]) == new.turn_id
    finished, note = await end(harness, old, TurnStatus.STOPPED)
    assert (finished.status, finished.admitted_turn_id) == (TurnStatus.REPLACED, new.turn_id)
    assert note is not None and note.kind is Wake.START
    told = await harness.rows("SELECT kind, data FROM events WHERE turn_id = $1 ORDER BY seq", old.turn_id)
    assert [each["kind"] for each in told][-2:] == ["stopped", "done"]
    assert told[-1]["data"]["status"] == "replaced" and told[-1]["data"]["replaced_by"] == new.turn_id
    shown = await in_transaction(harness.db, get_turn, old.turn_id, None)
    assert (shown["status"], shown["replaced_by"]) == ("replaced", new.turn_id)
    finished, _ = await end(harness, old, turn_id=new.turn_id)
    assert finished.admitted_turn_id == queued.turn_id, "who waited before goes on after it"


async def test_a_replaced_request_is_cancelled_and_no_decision_revives_it(harness: Harness) -> None:
    old = await harness.plan(("post", {"text": "x"}), ("post", {"text": "y"}))
    waiting, approved = await harness.open(old, "t1.0", "t1.1")
    await harness.decide(approved.request_id)
    new = await another(harness, old, OnBusy.REPLACE)
    assert (await harness.run_tool(old, "t1.1")).problem is not None, "nothing begins once it gives way"
    await end(harness, old, TurnStatus.STOPPED)
    for request in (waiting, approved):
        assert await harness.value("SELECT status FROM approvals WHERE id = $1", request.request_id) == "cancelled"
        kinds = await harness.rows("SELECT kind FROM audit WHERE subject = $1 ORDER BY id", request.request_id)
        assert kinds[-1]["kind"] == "approval.cancelled"
    with pytest.raises(CallerError) as refused:
        await harness.decide(waiting.request_id)
    assert refused.value.http == 409
    assert not harness.world.effects
    assert (await harness.turn(new.turn_id))["status"] == "accepted"


async def test_the_message_of_a_turn_that_never_ran_stays_with_its_outcome(harness: Harness) -> None:
    old, _ = await harness.start(Line("one"), caps=MANY)
    replaced = await another(harness, old, OnBusy.REPLACE)
    waits = await another(harness, old, OnBusy.QUEUE)
    stopped, new = await another(harness, old, OnBusy.QUEUE), await another(harness, old, OnBusy.REPLACE)

    async def message_states() -> list[tuple[str, str, bool]]:
        found, _ = await in_transaction(harness.db, conversations.list_messages, old.conversation_id, 50, 0)
        return [(str(each["turn_id"]), str(each["turn_status"]), bool(each["heard"])) for each in found]

    assert await harness.kinds(replaced.turn_id) == ["queued", "stopped", "done"]
    assert str((await harness.turn(replaced.turn_id))["replaced_by"]) == new.turn_id
    assert await harness.value("SELECT count(*) FROM outbox WHERE turn_id = $1", replaced.turn_id) == 0
    first = (replaced.turn_id, "replaced", False)
    assert await message_states() == [(old.turn_id, "accepted", True), first], "what still waits is not said yet"
    await harness.stop(stopped.turn_id)
    await end(harness, old, TurnStatus.STOPPED)
    assert await message_states() == [
        (old.turn_id, "replaced", True), first, (stopped.turn_id, "stopped", False), (new.turn_id, "accepted", True)
    ]  # fmt: skip
    await end(harness, old, turn_id=new.turn_id)
    call = await harness.model_call(old.model_copy(update={"turn_id": waits.turn_id}))
    async with harness.db.transaction("local") as tx:
        past = await tx.fetchval(f"SELECT ({PAST_OF_TURN}) FROM turns t WHERE t.id = $1", waits.turn_id)
        said = await prompt_messages(tx, call, PastMessages(**past), Window(WindowPolicy(), None), {})
    assert len(said.messages) == 3, "a model receives the old turn, the new one and its own, and nothing else"


async def test_a_stopped_replacement_leaves_its_place_to_queued_turns(harness: Harness) -> None:
    old, _ = await harness.start(Line("one"), caps=MANY)
    queued, new = await another(harness, old, OnBusy.QUEUE), await another(harness, old, OnBusy.REPLACE)
    await harness.stop(new.turn_id)
    assert (await harness.turn(new.turn_id))["status"] == "stopped"
    finished, _ = await end(harness, old, TurnStatus.STOPPED)
    assert (finished.status, finished.admitted_turn_id) == (TurnStatus.REPLACED, queued.turn_id)


async def test_a_message_that_joined_the_replaced_turn_runs_after_its_replacement(harness: Harness) -> None:
    old, _ = await harness.start(Line("one"), caps=MANY)
    joined, new = await another(harness, old, OnBusy.STEER), await another(harness, old, OnBusy.REPLACE)
    finished, _ = await end(harness, old)
    assert (finished.status, finished.admitted_turn_id) == (TurnStatus.COMPLETED, new.turn_id), "it was done already"
    finished, _ = await end(harness, old, turn_id=new.turn_id)
    message_id = await harness.value("SELECT message_id FROM turns WHERE id = $1", finished.admitted_turn_id)
    assert str(message_id) == joined.message_id


async def test_a_user_at_the_turn_limit_can_still_replace_one(harness: Harness) -> None:
    conversation_id = await harness.conversation(by="reviewer")
    statement = "SELECT count(*) FROM turns WHERE ended_at IS NULL AND user_id = $1"
    open_now = await harness.value(statement, harness.people["reviewer"].user_id)
    caps = Caps(queue_depth=0, turns_a_user=open_now + 1)
    given: dict[str, Any] = {"conversation_id": conversation_id, "by": "reviewer", "caps": caps}
    await harness.start(Line("one"), **given)
    with pytest.raises(CallerError):
        await harness.start(Line("two"), on_busy=OnBusy.QUEUE, **given)
    for _ in range(3):
        _, started = await harness.start(Line("two"), on_busy=OnBusy.REPLACE, **given)
        assert started.status is TurnStatus.QUEUED


@pytest.mark.sized
async def test_simultaneous_replacements_steers_stops_and_ends_keep_turns_in_order(harness: Harness) -> None:
    """Whatever comes first: no deadlock, one active turn, every message in the transcript of one turn or replaced."""
    chance = random.Random(66)
    for _ in range(sized(12, 3)):
        old, _ = await harness.start(Line("one"), caps=MANY)
        ways = [OnBusy.REPLACE, OnBusy.STEER, OnBusy.REPLACE, OnBusy.QUEUE, OnBusy.REPLACE]
        ends = (harness.stop(old.turn_id), end(harness, old, TurnStatus.STOPPED))
        work = (*(another(harness, old, way) for way in ways), *ends)
        answers = await gathered(*(late(chance, each) for each in work))
        assert not [each for each in answers if isinstance(each, BaseException)], answers
        active = "SELECT active_turn_id FROM conversations WHERE id = $1"
        while turn_id := await harness.value(active, old.conversation_id):
            await end(harness, old, TurnStatus.STOPPED, str(turn_id))
        rows = await harness.rows("SELECT id, status FROM turns WHERE conversation_id = $1", old.conversation_id)
        assert {each["status"] for each in rows} <= {status.value for status in ENDED}, "no turn is left behind"
        said = "SELECT count(*) FROM messages WHERE conversation_id = $1 AND role = 'user'"
        assert await harness.value(said, old.conversation_id) == 1 + len(ways)


async def steer(harness: Harness, to: TurnAddress, text: str = "heard", caps: Caps = MANY) -> StartedTurn:
    """Sends a message into the open turn; the model answers it with `text`, whatever the step."""
    lines = [Line(text)] * 3
    _, started = await harness.start(*lines, conversation_id=to.conversation_id, on_busy=OnBusy.STEER, caps=caps)
    return started


async def ask(harness: Harness, address: TurnAddress, step: int, *, attempt: int = 1, **given: Any) -> ModelReply:
    """A model call of the turn that is handed its first message alone."""
    call = (await harness.model_call(address)).model_copy(update={"call_id": model_call_id(step)})
    call = call.model_copy(update={"ask": call.ask.model_copy(update=given)})
    return await harness.activity(ModelActivities(harness.deps).complete, call, attempt=attempt)


async def users(harness: Harness, conversation_id: str) -> list[tuple[str, str, str | None]]:
    """The user messages of the transcript, in its order: id, turn, and the model call that took it."""
    sql = "SELECT id::text, turn_id::text, joins FROM messages WHERE conversation_id = $1 AND role = 'user' "
    rows = await harness.rows(sql + "AND in_transcript ORDER BY seq", conversation_id)
    return [(row["id"], row["turn_id"], row["joins"]) for row in rows]


def ids(reply: ModelReply) -> list[str]:
    return [ref.id for ref in reply.joined]


def user_messages(harness: Harness) -> list[str]:
    return [str(each["content"]) for each in harness.model.seen[-1].messages if each["role"] == "user"]


async def test_a_later_attempt_and_a_replay_get_the_same_messages(harness: Harness) -> None:
    address, _ = await harness.start(Line("x", fails=1), caps=MANY)
    line = Line("once more", fails=1)
    await harness.start(line, conversation_id=address.conversation_id, on_busy=OnBusy.STEER, caps=MANY)
    assert isinstance((await gathered(ask(harness, address, 1)))[0], Exception)
    second = await steer(harness, address, "both")
    reply = await ask(harness, address, 1, attempt=2)
    assert len(reply.joined) == 2 and reply.joined[1].id == second.message_id
    assert len(user_messages(harness)) == 3 and reply.message is not None and reply.message.text == "both"
    assert {joins for _, _, joins in await users(harness, address.conversation_id)} == {None, "m1"}
    joined = "SELECT data, call_id FROM events WHERE turn_id = $1 AND kind = 'message.joined' ORDER BY seq"
    told = [(each["call_id"], each["data"]["heard"]) for each in await harness.rows(joined, address.turn_id)]
    assert sorted(told, key=str) == [("m1", True), ("m1", True), (None, False), (None, False)]
    assert (await ask(harness, address, 1, attempt=3)).joined == reply.joined


@pytest.mark.parametrize("deaf", [{"stage": "own"}, {"deaf": True}], ids=str)
async def test_a_call_that_accepts_messages_receives_each_once_in_order(harness: Harness, deaf: dict[str, Any]) -> None:
    address, _ = await harness.start(*[Line("one")] * 4, caps=MANY)
    first = [(await steer(harness, address, str(number))).message_id for number in range(3)]
    assert ids(await ask(harness, address, 1, **deaf)) == [], "a call of the graph's own leaves it to the next"
    assert ids(await ask(harness, address, 2)) == first
    second = [(await steer(harness, address, str(number))).message_id for number in range(2)]
    assert ids(await ask(harness, address, 3)) == second
    assert ids(await ask(harness, address, 4)) == []
    assert [each[0] for each in await users(harness, address.conversation_id)][1:] == [*first, *second]


@pytest.mark.parametrize("status", (TurnStatus.COMPLETED, TurnStatus.FAILED, TurnStatus.LIMITED, TurnStatus.STOPPED))
async def test_messages_that_no_call_received_become_one_queued_turn(harness: Harness, status: TurnStatus) -> None:
    address, _ = await harness.start(Line("one"), caps=MANY)
    assert ids(await ask(harness, address, 1)) == []
    late = [(await steer(harness, address, text)).message_id for text in ("first", "second")]
    where = address.conversation_id
    behind, _ = await harness.start(Line("behind"), conversation_id=where, on_busy=OnBusy.QUEUE, caps=MANY)
    finished, note = await end(harness, address, status)
    left = finished.admitted_turn_id
    assert left is not None and left not in (address.turn_id, behind.turn_id) and note is not None
    old, row = [await harness.turn(each) for each in (address.turn_id, left)]
    assert (row["status"], str(row["message_id"])) == ("accepted", late[0])
    for kept in ("user_id", "agent_id", "agent_version", "topology", "routing", "limits", "metadata"):
        assert row[kept] == old[kept]
    (done,) = await harness.event_data(address.turn_id, "done")
    assert done["left_over"] == left
    assert await harness.kinds(left) == ["queued", "ready"]
    continued = address.model_copy(update={"turn_id": left})
    assert ids(await ask(harness, continued, 1)) == [late[1]]
    assert user_messages(harness)[-2:] == [script(*[Line(text)] * 3) for text in ("first", "second")]
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


async def test_waiting_messages_count_as_queued_and_a_stopping_turn_takes_none(harness: Harness) -> None:
    address, _ = await harness.start(Line("one"), caps=MANY)
    few = Caps(queue_depth=2, turns_a_user=100_000)
    await steer(harness, address, caps=few)
    queued, _ = await harness.start(Line("2"), conversation_id=address.conversation_id, on_busy=OnBusy.QUEUE, caps=few)
    for on_busy in (OnBusy.STEER, OnBusy.QUEUE):
        with pytest.raises(CallerError) as refused:
            await harness.start(Line("three"), conversation_id=address.conversation_id, on_busy=on_busy, caps=few)
        assert (refused.value.code, refused.value.http) == ("queue_full", 429)
    await harness.stop(address.turn_id)
    late = await steer(harness, address)
    assert not late.joined and late.status is TurnStatus.QUEUED
    finished, _ = await end(harness, address, TurnStatus.STOPPED)
    assert finished.admitted_turn_id not in (None, late.turn_id, queued.turn_id), "what joined first is the oldest"


@pytest.mark.sized
async def test_a_message_at_the_end_of_its_turn_is_neither_lost_nor_received_twice(harness: Harness) -> None:
    """Steers against model calls against the end, in any order that the locks allow."""
    chance = random.Random(6)
    for round_number in range(sized(12, 3)):
        address, _ = await harness.start(Line("one"), Line("two"), caps=MANY)
        sent = [steer(harness, address, f"{round_number}.{each}") for each in range(3)]
        work = (*sent, ask(harness, address, 1), end(harness, address))
        answers = await gathered(*(late(chance, each) for each in work))
        assert not [each for each in answers if isinstance(each, BaseException)], answers
        conversation_id, turn_id = address.conversation_id, address.turn_id
        active = "SELECT active_turn_id::text FROM conversations WHERE id = $1"
        while turn_id:  # all turns of the conversation, one after the other
            current = address.model_copy(update={"turn_id": turn_id})
            await ask(harness, current, 2)
            turn_id = (await end(harness, current))[0].admitted_turn_id or await harness.value(active, conversation_id)
        steered = [each.message_id for each in answers if isinstance(each, StartedTurn)]
        transcript = [each[0] for each in await users(harness, conversation_id)]
        assert len(steered) == 3 and sorted(transcript[1:]) == sorted(steered), "each is in the transcript once"
        waiting = "SELECT count(*) FROM messages WHERE conversation_id = $1 AND joins = ''"
        assert await harness.value(waiting, conversation_id) == 0
