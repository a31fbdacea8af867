"""Starting turns: one at a time in a conversation, the others wait their turn or are refused."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import asyncpg
import pytest
from prometheus_client import REGISTRY

from perdure.activities.model import ModelActivities
from perdure.contracts.calls import ModelReply
from perdure.contracts.errors import CallerError
from perdure.contracts.turns import FinishAsk, Limits, TurnAddress, TurnStatus
from perdure.core.turns import Caps, OnBusy
from perdure.store.database import new_id
from perdure.store.delivery.outbox import Wake
from perdure.store.turns.finish import finish
from tests.conftest import Urls
from tests.desk import Desk, gathered
from tests.doubles.spoken import Line
from tests.integration.conftest import Api

MANY = Caps(queue_depth=20, turns_a_user=10_000)


async def end(desk: Desk, address: TurnAddress, transcript: tuple[str, ...] = ()) -> str | None:
    """Finish a turn; the turn that it admits."""
    async with desk.db.transaction("local") as tx:
        ask = FinishAsk(address=address, status=TurnStatus.COMPLETED, transcript=transcript)
        return (await finish(tx, ask))[0].admitted_turn_id


async def test_of_many_starts_at_once_one_is_admitted(desk: Desk) -> None:
    conversation_id = await desk.conversation()
    answers = await gathered(*(desk.start(Line(str(n)), conversation_id=conversation_id, caps=MANY) for n in range(24)))
    started = [each for each in answers if isinstance(each, tuple)]
    refused = [each for each in answers if isinstance(each, CallerError)]
    assert (len(started), len(refused)) == (1, 23)
    (address, turn) = started[0]
    assert turn.status is TurnStatus.ACCEPTED and turn.note is not None and turn.note.kind is Wake.START
    assert {(each.code, each.http, each.details["turn_id"]) for each in refused} == {
        ("conversation_busy", 409, address.turn_id)
    }
    assert await desk.value("SELECT count(*) FROM messages WHERE conversation_id = $1", conversation_id) == 1
    assert await desk.value("SELECT count(*) FROM outbox WHERE turn_id = $1", address.turn_id) == 1


async def test_of_many_that_queue_the_queue_takes_twenty_and_they_run_in_their_order(desk: Desk) -> None:
    conversation_id = await desk.conversation()
    answers = await gathered(
        *(desk.start(Line(str(n)), conversation_id=conversation_id, on_busy=OnBusy.QUEUE, caps=MANY) for n in range(24))
    )
    codes = Counter(each.code for each in answers if isinstance(each, CallerError))
    assert codes == {"queue_full": 3}
    statuses = Counter(each[1].status for each in answers if isinstance(each, tuple))
    assert statuses == {TurnStatus.ACCEPTED: 1, TurnStatus.QUEUED: 20}
    rows = await desk.rows(
        "SELECT id, status FROM turns WHERE conversation_id = $1 ORDER BY created_at, id", conversation_id
    )
    waiting = [str(row["id"]) for row in rows if row["status"] == "queued"]
    active = next(str(row["id"]) for row in rows if row["status"] == "accepted")
    ran = []
    while active:
        address = TurnAddress(tenant_id="local", conversation_id=conversation_id, turn_id=active)
        admitted = await end(desk, address)
        ran += [admitted] if admitted else []
        if admitted:
            row = (await desk.rows("SELECT status, through_seq, message_id FROM turns WHERE id = $1", admitted))[0]
            seq = await desk.value("SELECT seq FROM messages WHERE id = $1", row["message_id"])
            assert (row["status"], row["through_seq"]) == ("accepted", seq - 1)
            assert await desk.value("SELECT count(*) FROM outbox WHERE turn_id = $1 AND kind = 'start'", admitted) == 1
        active = admitted or ""
    assert ran == waiting
    assert await desk.value("SELECT active_turn_id FROM conversations WHERE id = $1", conversation_id) is None


async def test_a_turn_sees_what_was_said_before_it_and_nothing_of_those_that_still_wait(desk: Desk) -> None:
    conversation_id = await desk.conversation()
    turns = [
        (await desk.start(Line(f"answer {n}"), conversation_id=conversation_id, on_busy=OnBusy.QUEUE, caps=MANY))[0]
        for n in range(3)
    ]
    for number, address in enumerate(turns):
        reply = await ask(desk, address)
        assert reply.message is not None
        said = [str(message["content"]) for message in desk.model.seen[-1].messages if message["role"] != "system"]
        assert len(said) == 2 * number + 1, said
        for earlier in range(number):
            assert f"answer {earlier}" in said[2 * earlier]
            assert said[2 * earlier + 1] == f"answer {earlier}"
        assert f"answer {number}" in said[-1]
        await end(desk, address, (reply.message.id,))


async def ask(desk: Desk, address: TurnAddress) -> ModelReply:
    """The turn's one model call."""
    return await desk.activity(ModelActivities(desk.deps).complete, await desk.model_call(address))


async def test_a_user_may_have_only_so_many_open_turns(desk: Desk) -> None:
    open_now = await desk.value("SELECT count(*) FROM turns WHERE ended_at IS NULL")
    caps = Caps(turns_a_user=open_now + 1)
    address, _ = await desk.start(Line("last"), caps=caps)
    with pytest.raises(CallerError) as refused:
        await desk.start(Line("one more"), caps=caps)
    assert (refused.value.code, refused.value.http) == ("too_many_turns", 429)
    assert (refused.value.details["open"], refused.value.details["waiting"]) == (open_now + 1, 0)
    await desk.write("UPDATE turns SET status = 'awaiting_approval' WHERE id = $1", address.turn_id)
    with pytest.raises(CallerError) as refused:
        await desk.start(Line("one more"), caps=caps)
    assert refused.value.details["waiting"] == 1
    await end(desk, address)
    await desk.start(Line("again"), caps=caps)


async def test_starts_at_once_in_many_conversations_do_not_pass_the_cap_of_their_user(desk: Desk) -> None:
    conversations = [await desk.conversation(by="reviewer") for _ in range(20)]
    caps = Caps(turns_a_user=3)
    answers = await gathered(
        *(desk.start(Line("hi"), conversation_id=each, caps=caps, by="reviewer") for each in conversations)
    )
    codes = Counter(each.code for each in answers if isinstance(each, CallerError))
    assert codes == {"too_many_turns": 17}
    assert len([each for each in answers if isinstance(each, tuple)]) == 3


async def test_a_start_that_waits_for_another_of_its_user_does_not_hold_its_conversation(desk: Desk) -> None:
    conversation_id, person = await desk.conversation(), desk.people["requester"]
    async with desk.db.transaction("local") as tx:
        await tx.execute("SELECT FROM users WHERE id = $1 FOR NO KEY UPDATE", person.user_id)
        starting = asyncio.create_task(desk.start(Line("hi"), conversation_id=conversation_id, caps=MANY))
        while not await tx.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            assert not starting.done(), "it does not wait for its user"
            await asyncio.sleep(0.01)
        await desk.write("SELECT FROM conversations WHERE id = $1 FOR UPDATE NOWAIT", conversation_id)
        await desk.conversation()  # what names the user is written all the same
    await starting


@pytest.fixture
async def no_commit(urls: Urls) -> AsyncIterator[None]:
    """Whoever inserts a turn learns at the commit that it cannot be."""
    owner = await asyncpg.connect(urls.owner, server_settings={"search_path": "perdure"})
    await owner.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$; "
        "CREATE CONSTRAINT TRIGGER refused AFTER INSERT ON turns DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    yield
    await owner.execute("DROP TRIGGER refused ON turns; DROP FUNCTION refuse()")
    await owner.close()


def counted() -> float:
    """The turns of the shipped agent that this process says it has started."""
    return REGISTRY.get_sample_value("perdure_turns_started_total", {"agent": "refunds"}) or 0.0


async def begin(api: Api, how: str, key: str) -> int:
    """Ask for a turn over HTTP; the answer's status."""
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
async def test_a_start_whose_commit_fails_is_not_counted(api: Api, no_commit: None, how: str) -> None:
    before = counted()
    assert await begin(api, how, f"refused {how}") >= 500
    assert counted() == before


@pytest.mark.parametrize("how", ["turns", "execute"])
async def test_a_start_is_counted_once_however_often_it_is_sent(api: Api, how: str) -> None:
    before = counted()
    for _ in range(3):
        assert await begin(api, how, f"again {how}") < 300
    assert counted() == before + 1


async def test_a_conversation_that_is_not_there_takes_no_turn(desk: Desk) -> None:
    before = await desk.value("SELECT count(*) FROM turns")
    with pytest.raises(CallerError) as refused:
        await desk.start(Line("hi"), conversation_id=new_id(), caps=MANY)
    assert (refused.value.code, refused.value.http) == ("conversation_not_found", 404)
    deleted = await desk.conversation()
    await desk.write("UPDATE conversations SET deleted_at = now() WHERE id = $1", deleted)
    with pytest.raises(CallerError):
        await desk.start(Line("hi"), conversation_id=deleted, caps=MANY)
    assert await desk.value("SELECT count(*) FROM turns") == before


async def test_a_turn_pins_its_agent_and_the_tighter_limits(desk: Desk) -> None:
    address, _ = await desk.start(Line("hi"), limits=Limits(max_tokens=77, max_iterations=999), caps=MANY)
    row = (await desk.rows("SELECT agent_version, limits FROM turns WHERE id = $1", address.turn_id))[0]
    assert row["agent_version"] == await desk.version()
    assert row["limits"] == {"max_tokens": 77, "max_cost_microusd": 5_000_000, "max_iterations": 20}
