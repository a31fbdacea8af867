"""The end of a turn: one transaction after which nothing of it happens any more; the title that it may give."""

import asyncio
import json
import random

import pytest
from temporalio.exceptions import ApplicationError

from perdure.contracts.calls import CallState
from perdure.contracts.errors import Problem
from perdure.contracts.events import PendingEvent
from perdure.contracts.ids import effect_key
from perdure.contracts.turns import FinishRequest, TurnAddress, TurnStatus
from perdure.core.approvals.decisions import Decision
from perdure.core.turns import OnBusy
from perdure.store.turns.finish import finish, finish_broken
from perdure.store.turns.views import turn_segments
from tests.doubles.fake_turn import NOW
from tests.doubles.message_script import Line
from tests.eventually import until
from tests.harness import Harness, gathered
from tests.integration.conftest import Caller, in_transaction
from tests.scale import sized

TRANSCRIPT = "SELECT * FROM messages WHERE conversation_id = $1 AND in_transcript ORDER BY seq"


async def test_the_end_stores_status_and_answer_and_its_last_event_is_done(harness: Harness) -> None:
    address = await harness.plan()
    pending = (PendingEvent(kind="node_end", at=NOW, number=5, data={"node": "output_format"}),)
    said = await harness.value("SELECT id FROM messages WHERE turn_id = $1 AND role = 'assistant'", address.turn_id)
    finished, note = await harness.finish(address, TurnStatus.COMPLETED, transcript=(str(said),), events=pending)
    assert (finished.status, finished.admitted_turn_id, note) == (TurnStatus.COMPLETED, None, None)
    turn = await harness.turn(address.turn_id)
    assert (turn["status"], turn["answer"], turn["waiting"]) == ("completed", "asking", None)
    assert turn["ended_at"] is not None
    last = ["node_end", "conversation.title.generated", "completed", "done"]
    assert (await harness.kinds(address.turn_id))[-4:] == last
    (done,) = await harness.event_data(address.turn_id, "done")
    assert done.pop("duration_ms") >= 0
    assert done == {
        "execution_id": address.turn_id, "status": "completed", "tokens_used": 10, "cost_usd": 0.00001,
        "finish_reason": "stop",
    }  # fmt: skip
    active = "SELECT active_turn_id FROM conversations WHERE id = $1"
    assert await harness.value(active, address.conversation_id) is None


@pytest.mark.parametrize(("said", "answer"), [("asking", "asking\n\nIt ends."), ("", "It ends.")])
async def test_the_graphs_text_extends_the_models_own_message(harness: Harness, said: str, answer: str) -> None:
    address = await harness.plan()
    made = await harness.value("SELECT id FROM messages WHERE turn_id = $1 AND role = 'assistant'", address.turn_id)
    await harness.write("UPDATE messages SET content = $2 WHERE id = $1", made, said)
    await harness.finish(address, TurnStatus.FAILED, transcript=(str(made),), answer="It ends.", extends=str(made))
    assert (await harness.turn(address.turn_id))["answer"] == answer


async def test_of_many_simultaneous_ends_of_a_turn_one_is_stored(harness: Harness) -> None:
    first, _ = await harness.start(Line("one"))
    second, _ = await harness.start(Line("two"), conversation_id=first.conversation_id, on_busy=OnBusy.QUEUE)
    statuses = [TurnStatus.COMPLETED, TurnStatus.FAILED, TurnStatus.STOPPED, TurnStatus.LIMITED] * 4
    answers = await asyncio.gather(*(harness.finish(first, status) for status in statuses))
    stands = await harness.value("SELECT status FROM turns WHERE id = $1", first.turn_id)
    assert {finished.status for finished, _ in answers} == {stands}
    admitted = [finished.admitted_turn_id for finished, _ in answers if finished.admitted_turn_id]
    kinds = await harness.kinds(first.turn_id)
    assert (admitted, kinds.count("done"), kinds[-1]) == ([second.turn_id], 1, "done")


async def test_the_end_voids_open_requests_and_answers_each_pending_call(harness: Harness) -> None:
    address = await harness.plan(("pay", {}), ("post", {}), ("look", {}), ("post", {}), ("pay", {}))
    first, second, told_no, unheard = await harness.open(address, "t1.0", "t1.1", "t1.3", "t1.4")
    await harness.decide(first.request_id)
    await harness.decide(told_no.request_id, Decision.REJECT, comment="not today")
    await harness.run_tool(address, "t1.3")
    await harness.decide(unheard.request_id, Decision.REJECT, comment="nor this")
    await harness.finish(address)
    statuses = await harness.rows("SELECT status FROM approvals WHERE turn_id = $1", address.turn_id)
    assert sorted(row["status"] for row in statuses) == ["cancelled", "cancelled", "rejected", "rejected"]
    cancelled = "SELECT subject FROM audit WHERE kind = 'approval.cancelled' AND turn_id = $1"
    audited = {row["subject"] for row in await harness.rows(cancelled, address.turn_id)}
    assert audited == {first.request_id, second.request_id}
    kept = await harness.rows(TRANSCRIPT, address.conversation_id)
    assert [row["role"] for row in kept] == ["user", "assistant", *["tool"] * 5]
    assert kept[1]["content"] == "asking" and len(kept[1]["calls"]) == 5, "its reader has seen it"
    answers = {row["call_id"]: json.loads(row["content"]) for row in kept[2:]}
    unrun = ("t1.0", "t1.1", "t1.2")
    assert {call: (told["status"], told.get("reason")) for call, told in answers.items()} == {
        **dict.fromkeys(unrun, ("not_run", None)), "t1.3": ("denied", "not today"), "t1.4": ("denied", "nor this")
    }  # fmt: skip
    assert (await harness.kinds(address.turn_id))[-2:] == ["stopped", "done"]
    told = await in_transaction(harness.db, turn_segments, address.turn_id, None)
    states = {each["call_id"]: each["state"] for each in told if each["kind"] == "tool"}
    shown = dict.fromkeys(unrun, "error") | dict.fromkeys(("t1.3", "t1.4"), "denied")
    assert states == shown, "none is left waiting on its reader's screen"
    assert {error["code"] for error in await harness.event_data(address.turn_id, "tool.error")} == {"not_run"}


@pytest.mark.parametrize(
    ("tool", "code"), [("pay", "outcome_unknown"), ("post", "outcome_unknown"), ("look", "not_known")]
)
async def test_a_call_of_a_lost_worker_is_closed_as_it_is_known(harness: Harness, tool: str, code: str) -> None:
    address = await harness.plan((tool, {}))
    reserved = "UPDATE tool_calls SET state = 'reserved', epoch = 1, run_id = 'run-1', attempt = 1 WHERE turn_id = $1"
    await harness.write(reserved, address.turn_id)
    await broken(harness, address)
    (error,) = await harness.event_data(address.turn_id, "tool.error")
    key = effect_key(address.turn_id, "t1.0")
    assert (error["code"], error.get("effect")) == (code, key if code == "outcome_unknown" else None)
    assert error["message_id"]
    assert (await harness.kinds(address.turn_id))[-1] == "done"


async def broken(harness: Harness, address: TurnAddress) -> None:
    await in_transaction(harness.db, finish_broken, address, Problem(code="run_terminated", message="gone"))


async def test_a_turn_whose_run_is_gone_fails_with_its_texts_and_an_answer_for_each_call(harness: Harness) -> None:
    address = await harness.plan(("look", {}), ("look", {}), ("pay", {}))
    (paid,) = await harness.open(address, "t1.2")
    await harness.decide(paid.request_id)
    for call_id in ("t1.0", "t1.2"):
        await harness.run_tool(address, call_id)
    await broken(harness, address)
    (turn,) = await harness.rows("SELECT status, answer FROM turns WHERE id = $1", address.turn_id)
    assert tuple(turn) == ("failed", "asking")
    rows = await harness.rows(TRANSCRIPT, address.conversation_id)
    asked = {call["call_id"] for row in rows for call in row["calls"]}
    assert asked == {row["call_id"] for row in rows if row["role"] == "tool"}
    assert (await harness.approval_row(address, "t1.2"))["status"] == "done", "what has run keeps its status"


async def test_the_next_queued_turn_starts_after_every_message_of_the_end(harness: Harness) -> None:
    """The end of a turn that broke off answers for calls that have no result; the next turn's model must see that."""
    first = await harness.plan(("look", {}), ("pay", {}))
    second, _ = await harness.start(Line("next"), conversation_id=first.conversation_id, on_busy=OnBusy.QUEUE)
    assert await harness.kinds(second.turn_id) == ["queued"]
    await harness.run_tool(first, "t1.0")
    await harness.finish(first)
    assert await harness.kinds(second.turn_id) == ["queued", "ready"]
    last = "SELECT turn_id::text, kind, data FROM events WHERE conversation_id = $1 ORDER BY seq DESC LIMIT 2"
    ready, done = await harness.rows(last, first.conversation_id)
    assert [*ready] == [second.turn_id, "ready", {"agent": "desk", "run_id": second.turn_id}]
    assert [*done][:2] == [first.turn_id, "done"]
    said = await harness.rows(TRANSCRIPT, first.conversation_id)
    assert [row["role"] for row in said] == ["user", "assistant", "tool", "tool", "user"]
    assert str(said[-1]["turn_id"]) == second.turn_id
    through = await harness.value("SELECT through_seq FROM turns WHERE id = $1", second.turn_id)
    assert said[-2]["seq"] <= through < said[-1]["seq"]


@pytest.mark.parametrize("status", [TurnStatus.COMPLETED, TurnStatus.FAILED])
async def test_the_end_reads_the_messages_of_its_own_conversation_only(harness: Harness, status: TurnStatus) -> None:
    """With 200,000 messages of others a scan of the table took 90 ms, and this takes 3 (measured)."""
    others, address = await harness.plan(), await harness.plan(("look", {}))
    await harness.run_tool(address)
    many = (
        "INSERT INTO messages (id, tenant_id, conversation_id, turn_id, seq, role, content) "
        "SELECT gen_random_uuid(), 'local', $1, $2, 1000 + n, 'tool', '' FROM generate_series(1, 2000) n"
    )
    await harness.write(many, others.conversation_id, others.turn_id)
    async with harness.db.transaction("local") as tx:
        await tx.execute("SET LOCAL enable_seqscan = off")  # a small table is scanned whatever its indexes
        # Counts of this session that are not flushed yet, so those of the transactions before may be among them.
        read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'messages'"
        before = await tx.fetchval(read) or 0
        await finish(tx, FinishRequest(address=address, status=status))
        assert await tx.fetchval(read) - before < 100


@pytest.mark.sized
@pytest.mark.parametrize("how", ["finish", "stop"])
async def test_no_effect_follows_the_end_or_a_stop(harness: Harness, how: str) -> None:
    """A reservation races with the end: the first commit decides. The first turn ends before its call begins and the
    last one after its effect, so that both cases occur."""
    turns = [await harness.approved(("pay", {"amount": n + 1})) for n in range(sized(40, 12))]
    chance = random.Random(5)

    async def ends(address: TurnAddress) -> None:
        await asyncio.sleep(chance.uniform(0, 0.3))
        if address is turns[-1]:
            await until(lambda: ("/pay", effect_key(address.turn_id, "t1.0")) in harness.world.effects)
        if how == "finish":
            await harness.finish(address)
            return
        await harness.stop(address.turn_id)

    await ends(turns[0])
    answers = await gathered(
        harness.run_tool(turns[0]),
        *(each for address in turns[1:] for each in (harness.run_tool(address), ends(address))),
    )
    assert not [each for each in answers if isinstance(each, BaseException) and not isinstance(each, ApplicationError)]
    effects = list(harness.world.effects)
    fell = set()
    for address in turns:
        happened = ("/pay", effect_key(address.turn_id, "t1.0")) in effects
        row, approval = await harness.call_row(address), (await harness.approval_row(address))["status"]
        fell.add(happened)
        if happened:
            over = "SELECT coalesce(ended_at, stop_requested_at) FROM turns WHERE id = $1"
            assert row["first_sent_at"] < await harness.value(over, address.turn_id), "reserved before the turn ended"
            assert approval == row["state"] and row["state"] in ("done", "outcome_unknown")
        else:
            assert approval != "done" and row["state"] in ("planned", "reserved", "outcome_unknown")
    assert fell == {True, False}, "the race falls both ways"
    for address in turns:
        outcome = await harness.run_tool(address, attempt=2)
        happened = ("/pay", effect_key(address.turn_id, "t1.0")) in effects
        assert outcome.state is not CallState.DONE or happened
        assert outcome.state is not CallState.FAILED or not happened
    assert harness.world.effects == effects, "nothing happens after the end"


async def titled(harness: Harness, status: TurnStatus, title: str = "", after: str = "") -> tuple[str, list[str]]:
    """The title after a turn that ended so, and what its events tell of titles."""
    conversation_id, set_title = await harness.conversation(), "UPDATE conversations SET title = $2 WHERE id = $1"
    await harness.write(set_title, conversation_id, title)
    address, _ = await harness.start(Line("yes"), conversation_id=conversation_id)
    message = "Where is  order 1001\nand who has paid"
    await harness.write("UPDATE messages SET content = $2 WHERE turn_id = $1", address.turn_id, message)
    if after:
        await harness.write(set_title, conversation_id, after)
    await harness.finish(address, status)
    events = await harness.event_data(address.turn_id, "conversation.title.generated")
    assert (await harness.kinds(address.turn_id))[-1] == "done"
    now = await harness.value("SELECT title FROM conversations WHERE id = $1", conversation_id)
    return str(now), [event["title"] for event in events]


MADE = "Where is order 1001 and who"
TITLES: list[tuple[TurnStatus, dict[str, str], tuple[str, list[str]]]] = [
    (TurnStatus.COMPLETED, {}, (MADE, [MADE])),
    (TurnStatus.COMPLETED, {"title": "Mine"}, ("Mine", [])),
    (TurnStatus.COMPLETED, {"after": "Mine"}, ("Mine", [])),
    *((status, {}, ("", [])) for status in (TurnStatus.FAILED, TurnStatus.STOPPED, TurnStatus.LIMITED)),
]


@pytest.mark.parametrize(("status", "given", "expected"), TITLES)
async def test_the_first_answer_gives_a_title_unless_the_user_did(
    harness: Harness, status: TurnStatus, given: dict[str, str], expected: tuple[str, list[str]]
) -> None:
    assert await titled(harness, status, **given) == expected


async def test_a_turns_segments_and_times_are_stored(requester: Caller) -> None:
    made = (await requester.post("/v1/conversations", json={"agent": "refunds"})).json()
    path = f"/v1/conversations/{made['id']}/turns"
    turn = (await requester.post(path, params={"wait": 20}, json={"message": "/echo one two"})).json()
    assert 0 <= turn["ttft_seconds"] <= turn["ttr_seconds"]
    story = (await requester.get(f"/v1/turns/{turn['turn_id']}/segments")).json()["items"]
    assert [(each["kind"], each["state"], each["text"]) for each in story] == [("text", "completed", "one two")]
    paused = (await requester.post(path, params={"wait": 20}, json={"message": "Refund order 1001"})).json()
    assert paused["ttr_seconds"] is None
    story = (await requester.get(f"/v1/turns/{paused['turn_id']}/segments")).json()["items"]
    asked = story[-1]
    assert (asked["kind"], asked["state"], asked["tool"]) == ("tool", "awaiting_approval", "refund")
    assert asked["arguments"]["order"] and asked["approval_id"] == paused["waiting_for"]["ids"][0]
    assert "result" not in asked
    await requester.post(f"/v1/turns/{paused['turn_id']}/stop")
