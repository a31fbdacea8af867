"""How turns end on the real server: at a limit, at a stop, after a provider that fails."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from pydantic import JsonValue
from temporalio.client import Client

from perdure.contracts.turns import Limits, Routing, TurnStatus
from perdure.core.calls.retries import PROVIDER_ERRORS
from perdure.core.turns import OnBusy
from tests.desk import Desk, until
from tests.doubles.broken_inside import Breaks, Brief, broken_inside
from tests.doubles.spoken import Line
from tests.replay.recording import run_of
from tests.served import ALL_KINDS, DONE, PAUSED, PAY, Served, apart, serve

LOOK: tuple[str, dict[str, JsonValue]] = ("look", {})


@pytest.mark.parametrize(
    ("limits", "code", "calls"),
    [
        (Limits(max_tokens=11), "token_budget_spent", 2),
        (Limits(max_cost_microusd=20), "cost_budget_spent", 2),
        (Limits(max_iterations=3), "iteration_limit", 3),
    ],
)
async def test_a_limit_ends_the_turn_as_limited_and_the_conversation_stays_usable(
    served: Served, limits: Limits, code: str, calls: int
) -> None:
    address, row = await served.ended(*(Line(f"round {n}", [LOOK]) for n in range(5)), limits=limits)
    assert (row["status"], row["problem"]["code"]) == ("limited", code)
    assert len(served.sent_to_model(address)) == calls
    again, row = await served.ended(Line("still here"), conversation_id=address.conversation_id)
    assert (row["status"], row["answer"]) == ("completed", "still here")
    for message in served.sent_to_model(again)[0]:
        asked = {call["id"] for call in message.get("tool_calls", [])}
        assert asked <= {other.get("tool_call_id") for other in served.sent_to_model(again)[0]}


async def test_an_agents_own_limits_and_window_hold(served: Served) -> None:
    address, row = await served.ended(
        *(Line(f"round {n}", [LOOK], tokens=2) for n in range(3)), agent_id="narrow", limits=Limits(max_iterations=99)
    )
    assert (row["status"], row["problem"]["code"]) == ("limited", "iteration_limit")
    roles = [message["role"] for message in served.sent_to_model(address)[-1]]
    assert roles == ["user", "assistant", "tool"], "two messages of the past, a round whole, and the first user's"


async def test_a_provider_that_breaks_off_is_asked_again_and_the_reader_gets_one_text(served: Served) -> None:
    address, row = await served.ended(Line("one two three", fails=2))
    assert (row["status"], row["answer"]) == ("completed", "one two three")
    assert served.desk.model.requests[f"{address.turn_id}.m1"] == 3
    assert [text for _, text in await served.transcript(address)] == ["one two three"]
    assert row["attempts"] == 3


async def test_a_provider_that_keeps_breaking_off_fails_the_turn_with_its_code(served: Served) -> None:
    address, row = await served.ended(Line("half", fails=99))
    assert (row["status"], row["problem"]["code"]) == ("failed", "model_unavailable")
    assert served.desk.model.requests[f"{address.turn_id}.m1"] == PROVIDER_ERRORS
    assert await served.handle(address).result() == "failed", "a failed turn is a run that ended well"


async def test_a_stop_while_the_model_is_silent_ends_the_turn_soon(served: Served) -> None:
    address = await served.begin(Line("thinking", seconds=60))
    await until(lambda: served.desk.model.requests[f"{address.turn_id}.m1"] == 1)
    await served.stop(address)
    row = await served.until(address, TurnStatus.STOPPED)
    assert row["problem"] is None
    assert [text for _, text in await served.transcript(address)] == ["thinking"]


@pytest.mark.parametrize("what", ["model", "tool"])
async def test_a_stop_between_two_tries_ends_the_turn_and_nothing_is_tried_again(served: Served, what: str) -> None:
    """The next try would come after a minute."""
    waiting = (
        Line("one two", fails=99, again_seconds=60) if what == "model" else Line("", [("look", {"mode": "later"})])
    )
    address = await served.begin(waiting, DONE)

    async def tried_once() -> bool:
        pending = (await served.handle(address).describe()).raw_description.pending_activities
        return bool(pending) and pending[0].attempt > 1

    for _ in range(1_500):
        if await tried_once():
            break
        await asyncio.sleep(0.02)
    await served.stop(address)
    row = await served.until(address, TurnStatus.STOPPED)
    assert row["problem"] is None
    assert (await served.desk.kinds(address.turn_id))[-2:] == ["stopped", "done"]
    assert served.desk.model.requests[f"{address.turn_id}.m1"] == 1
    assert served.desk.world.requests[f"{address.turn_id}/t1.0"] == (1 if what == "tool" else 0)
    told = await served.desk.rows(
        "SELECT data->>'code' AS code FROM events WHERE turn_id = $1 AND kind = 'tool.error'", address.turn_id
    )
    assert [each["code"] for each in told] == (["not_run"] if what == "tool" else [])
    said = await served.desk.rows(
        "SELECT m.content, m.partial, m.in_transcript, t.answer FROM turns t JOIN messages m ON m.turn_id = t.id "
        "WHERE t.id = $1 AND m.role = 'assistant' AND m.content <> ''",
        address.turn_id,
    )
    kept = {"content": "one two", "partial": True, "in_transcript": True, "answer": "one two"}
    assert [dict(each) for each in said] == ([kept] if what == "model" else [])


async def test_a_stop_while_a_call_is_under_way_leaves_its_outcome_to_a_person(served: Served) -> None:
    served.desk.world.go_on.clear()
    address = await served.begin(Line("", [("shout", {"mode": "wait"}), LOOK]), DONE)
    await until(lambda: served.effects(address, "/shout") == 1)
    await served.stop(address)
    await served.until(address, TurnStatus.STOPPED)
    assert (await served.states(address))["t1.0"] == "outcome_unknown"
    assert len(served.sent_to_model(address)) == 1


async def test_a_stop_of_a_paused_turn_cancels_what_it_asked_for_and_admits_the_next(served: Served) -> None:
    address = await served.paused(Line("", [PAY]), DONE)
    waiting = await served.begin(Line("my turn"), conversation_id=address.conversation_id, on_busy=OnBusy.QUEUE)
    await served.stop(address)
    await served.until(address, TurnStatus.STOPPED)
    assert (await served.until(waiting, TurnStatus.COMPLETED))["answer"] == "my turn"
    assert await served.desk.value("SELECT status FROM approvals WHERE turn_id = $1", address.turn_id) == "cancelled"
    sent = served.sent_to_model(waiting)[0]
    assert [message["role"] for message in sent][-4:] == ["user", "assistant", "tool", "user"]
    assert "not_run" in str(sent[-2]), "the next turn's model is told what became of it"


async def test_a_stop_before_the_first_task_ends_the_turn_without_a_model_call(served: Served) -> None:
    address, started = await served.desk.start(Line("never said"))
    await served.stop(address)
    assert started.note is not None
    await served.desk.deps.doorbell.deliver_soon(started.note)
    await served.until(address, TurnStatus.STOPPED)
    assert not served.sent_to_model(address)


@pytest.mark.parametrize("way", Breaks)
async def test_a_finish_that_breaks_inside_the_workflow_task_is_made_again_as_an_ordinary_activity(
    served: Served, way: Breaks
) -> None:
    with broken_inside(way) as broken:
        address, row = await served.ended(Line("first"))
        assert await served.handle(address).result() == "completed"
        assert broken == [address.turn_id]
    assert (row["status"], row["answer"], row["problem"]) == ("completed", "first", None)
    kinds = await served.desk.kinds(address.turn_id)
    assert (kinds.count("done"), kinds[-1]) == (1, "done")
    run = run_of((await served.runs(address))[-1])
    assert run.called[-2:] == ("turns.finish", "turns.finish")
    assert [name for name, _ in run.scheduled].count("turns.finish") == 1, "inside the task, then outside of it"
    _, row = await served.ended(Line("next"), conversation_id=address.conversation_id)
    assert row["answer"] == "next"


@pytest.mark.parametrize("way", Breaks)
@pytest.mark.parametrize("brief", [Brief.LOAD, Brief.READ])
async def test_a_read_that_breaks_inside_the_workflow_task_is_made_again_as_an_ordinary_activity(
    served: Served, way: Breaks, brief: Brief
) -> None:
    with broken_inside(way, brief) as broken:
        address = await served.paused(Line("", [PAY]), DONE)
        await served.decide(address)
        row = await served.until(address, TurnStatus.COMPLETED)
        assert broken == [address.turn_id]
    assert row["answer"] == "well"
    assert served.effects(address, "/pay") == 1
    runs = [run_of(history) for history in await served.runs(address)]
    assert [name for run in runs for name, _ in run.scheduled].count(brief) == 1
    assert [name for run in runs for name in run.called].count(brief) == 2


async def test_a_turn_with_a_queue_for_each_kind_loads_and_reads_in_activities_of_their_own(
    desk: Desk, temporal: Client
) -> None:
    served = apart(desk, temporal, Routing.spread())
    async with AsyncExitStack() as stack:
        await serve(stack, served.desk, ALL_KINDS)
        address = await served.paused(Line("", [PAY]), DONE)
        await served.decide(address)
        await served.until(address, TurnStatus.COMPLETED)
        assert await served.handle(address).result() == "completed"
        scheduled = [name for history in await served.runs(address) for name, _ in run_of(history).scheduled]
    assert scheduled[0] == Brief.LOAD and scheduled[3] == Brief.READ
    assert Brief.FINISH not in scheduled


async def test_a_second_stop_and_a_stop_after_the_end_change_nothing(served: Served) -> None:
    address = await served.paused(Line("", [PAY]), DONE)
    await asyncio.gather(*(served.stop(address) for _ in range(5)))
    await served.until(address, TurnStatus.STOPPED)
    await served.stop(address)
    assert (await served.desk.kinds(address.turn_id)).count("done") == 1


async def test_a_turn_paused_in_one_conversation_does_not_hold_up_another(served: Served) -> None:
    paused = await served.paused(Line("", [PAY]), DONE)
    _, row = await served.ended(Line("quick"))
    assert row["answer"] == "quick"
    assert (await served.row(paused))["status"] == PAUSED.value
