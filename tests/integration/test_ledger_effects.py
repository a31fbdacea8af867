"""`tools.run` on the real ledger: what each effect class promises, attempt by attempt."""

import asyncio
from typing import Any

import pytest
from temporalio.activity import ActivityCancellationDetails
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from perdure.activities.tools import ToolActivities
from perdure.contracts.calls import CallState, ToolOutcome
from perdure.contracts.events import PendingEvent
from perdure.contracts.ids import effect_key
from perdure.contracts.turns import TurnAddress
from perdure.core.approvals.decisions import Decider
from perdure.core.calls.retries import TOOL_ERRORS
from perdure.store.calls.effects import settle_by_person
from tests.desk import Desk, gathered, until
from tests.doubles.fake_turn import NOW

S = CallState


@pytest.fixture(autouse=True)
def nothing_goes_on(desk: Desk) -> None:
    """Calls in the mode `wait` wait anew."""
    desk.world.go_on.clear()


async def tries(desk: Desk, address: TurnAddress, most: int = 8) -> ToolOutcome:
    """Attempts as Temporal makes them, until one returns."""
    for attempt in range(1, most + 1):
        try:
            return await desk.run_tool(address, attempt=attempt)
        except ApplicationError as error:
            assert error.type == "tool_unavailable"
            assert not error.non_retryable
    raise AssertionError("no attempt returned")


KEYED = [
    # mode by attempt, how it ends, effects, requests
    ("", S.DONE, 1, 1),
    ("down", S.DONE, 1, 2),
    ("busy", S.DONE, 1, 2),
    ("break", S.DONE, 1, 2),
    ("lose", S.DONE, 1, 2),
    ("break,break,down,busy", S.DONE, 1, 5),
    ("refuse", S.FAILED, 0, 1),
    ("down,refuse", S.FAILED, 0, 2),
    ("down,down,down,down,down", S.FAILED, 0, TOOL_ERRORS),
    # It may have happened, so a later "no" of whatever kind settles nothing.
    ("break,refuse", S.OUTCOME_UNKNOWN, 1, 2),
    ("lose,refuse", S.OUTCOME_UNKNOWN, 0, 2),
    ("break,down,down,down,down", S.OUTCOME_UNKNOWN, 1, TOOL_ERRORS),
    ("lose,lose,lose,lose,lose", S.OUTCOME_UNKNOWN, 0, TOOL_ERRORS),
]


@pytest.mark.parametrize(("mode", "state", "effects", "requests"), KEYED, ids=[row[0] or "fine" for row in KEYED])
async def test_a_keyed_call_is_sent_under_one_key_and_never_called_undone(
    desk: Desk, mode: str, state: CallState, effects: int, requests: int
) -> None:
    address = await desk.plan(("book", {"mode": mode}))
    outcome = await tries(desk, address)
    key = effect_key(address.turn_id, "t1.0")
    assert outcome.state is state
    assert desk.world.effects.count(("/book", key)) == effects
    assert desk.world.requests[key] == requests
    assert (await desk.call_row(address))["state"] == state
    assert await desk.run_tool(address, attempt=9) == outcome, "settled: every later attempt hears the same"
    assert desk.world.requests[key] == requests


OPAQUE = [
    ("", S.DONE, 1, 1),
    ("break", S.OUTCOME_UNKNOWN, 1, 1),
    ("lose", S.OUTCOME_UNKNOWN, 0, 1),
    ("refuse", S.FAILED, 0, 1),
    ("busy", S.FAILED, 0, 1),
    ("down", S.DONE, 1, 2),
    ("down,break", S.OUTCOME_UNKNOWN, 1, 2),
]


@pytest.mark.parametrize(("mode", "state", "effects", "requests"), OPAQUE, ids=[row[0] or "fine" for row in OPAQUE])
async def test_an_opaque_call_is_dispatched_once_and_a_break_is_for_a_person(
    desk: Desk, mode: str, state: CallState, effects: int, requests: int
) -> None:
    address = await desk.approved(("post", {"mode": mode, "text": mode}))
    call = f"{address.turn_id}/t1.0"
    outcome = await tries(desk, address)
    assert outcome.state is state
    assert desk.world.effects.count(("/post", call)) == effects
    assert desk.world.requests[call] == requests
    for attempt, run_id in ((2, "run-1"), (1, "run-2")):
        assert (await desk.run_tool(address, attempt=attempt, run_id=run_id)).state is state
    assert desk.world.requests[call] == requests
    assert (await desk.approval_row(address))["status"] == state.value


@pytest.mark.parametrize("tool", ["shout", "post"])
async def test_a_worker_that_dies_inside_an_opaque_call_leaves_it_to_a_person(desk: Desk, tool: str) -> None:
    plan = desk.approved if tool == "post" else desk.plan
    address = await plan((tool, {"mode": "wait"}))
    await kill_while_sent(desk, address)
    effects = len(desk.world.effects)
    outcome = await desk.run_tool(address, attempt=2)
    assert outcome.state is S.OUTCOME_UNKNOWN
    assert outcome.message is None
    assert len(desk.world.effects) == effects, "never sent again"
    assert (await desk.kinds(address.turn_id)).count("tool.error") == 1
    assert (await desk.run_tool(address, attempt=3)).state is S.OUTCOME_UNKNOWN
    assert (await desk.kinds(address.turn_id)).count("tool.error") == 1, "said once"


@pytest.mark.parametrize(("tool", "state", "sent"), [("book", S.DONE, 2), ("brief_key", S.OUTCOME_UNKNOWN, 1)])
async def test_a_keyed_call_whose_worker_dies_is_sent_again_unless_the_target_has_forgotten_the_key(
    desk: Desk, tool: str, state: CallState, sent: int
) -> None:
    address = await desk.plan((tool, {"mode": "wait"}))
    await kill_while_sent(desk, address)
    await desk.write(
        "UPDATE tool_calls SET first_sent_at = first_sent_at - interval '1 second' WHERE turn_id = $1", address.turn_id
    )
    assert (await desk.run_tool(address, attempt=2)).state is state
    key = effect_key(address.turn_id, "t1.0")
    assert desk.world.requests[key] == sent
    assert desk.world.effects.count((f"/{tool}", key)) == 1


async def kill_while_sent(desk: Desk, address: TurnAddress) -> None:
    """The first attempt has sent its request when its worker dies."""
    dying = await frozen_inside(desk, address)
    dying.cancel()
    await gathered(dying)
    assert (await desk.call_row(address))["state"] == "reserved"


async def test_a_worker_that_wakes_late_with_the_truth_settles_what_was_given_up_as_unknown(desk: Desk) -> None:
    address = await desk.plan(("shout", {"mode": "wait"}))
    zombie = await frozen_inside(desk, address)
    assert (await desk.run_tool(address, attempt=2)).state is S.OUTCOME_UNKNOWN
    desk.world.go_on.set()
    late = await zombie
    assert late.state is S.DONE
    row = await desk.call_row(address)
    assert (row["state"], row["lost_settles"]) == ("done", 0)
    assert await desk.run_tool(address, attempt=3) == late


async def test_a_worker_that_wakes_after_a_person_settled_is_refused_and_counted(desk: Desk) -> None:
    address = await desk.plan(("shout", {"mode": "wait"}))
    zombie = await frozen_inside(desk, address)
    await desk.run_tool(address, attempt=2)
    reviewer = desk.people["reviewer"]
    async with desk.db.transaction("local") as tx:
        key = effect_key(address.turn_id, "t1.0")
        await settle_by_person(tx, key, Decider(reviewer.user_id, reviewer.roles, "reviewer"), "happened", "seen")
    desk.world.go_on.set()
    (late,) = await gathered(zombie)
    assert isinstance(late, ApplicationError) and late.type == "settle_refused"
    row = await desk.call_row(address)
    assert (row["state"], row["lost_settles"], row["comment"]) == ("done", 1, "seen")


async def test_a_keyed_worker_that_lost_its_epoch_may_neither_send_nor_settle(desk: Desk) -> None:
    address = await desk.plan(("book", {"mode": "wait"}))
    key = effect_key(address.turn_id, "t1.0")
    zombie = await frozen_inside(desk, address)
    outcome = await desk.run_tool(address, attempt=2)
    assert outcome.state is S.DONE
    desk.world.go_on.set()
    (late,) = await gathered(zombie)
    assert isinstance(late, ApplicationError) and late.type == "settle_refused" and not late.non_retryable
    row = await desk.call_row(address)
    assert (row["state"], row["epoch"], row["lost_settles"]) == ("done", 2, 1)
    assert desk.world.effects.count(("/book", key)) == 1
    messages = await desk.value("SELECT count(*) FROM messages WHERE turn_id = $1 AND role = 'tool'", address.turn_id)
    assert messages == 1


async def frozen_inside(desk: Desk, address: TurnAddress) -> asyncio.Task[ToolOutcome]:
    """The first attempt, which has sent its request and hears nothing."""
    running = desk.world.running
    zombie = asyncio.create_task(desk.run_tool(address))
    await until(lambda: desk.world.running > running)
    return zombie


@pytest.mark.parametrize("tool", ["jot", "book"], ids=["local", "keyed"])
async def test_many_attempts_at_once_do_a_call_once(desk: Desk, tool: str) -> None:
    """Who does not settle hears the stored result, or that the call is not theirs."""
    address = await desk.plan((tool, {"text": "once"} if tool == "jot" else {}))
    outcomes = await gathered(*(desk.run_tool(address, attempt=attempt) for attempt in range(1, 11)))
    settled = await desk.run_tool(address, attempt=11)
    assert settled.state is S.DONE and settled in outcomes
    for outcome in outcomes:
        if isinstance(outcome, ToolOutcome):
            assert outcome == settled or (outcome.problem is not None and outcome.problem.code == "stale_attempt")
        else:
            assert isinstance(outcome, ApplicationError) and outcome.type in ("settle_refused", "tool_unavailable")
    assert (await desk.kinds(address.turn_id)).count("tool.result") == 1
    made = await desk.value("SELECT count(*) FROM entities WHERE created_by_turn = $1", address.turn_id)
    assert made + desk.world.effects.count(("/book", effect_key(address.turn_id, "t1.0"))) == 1


@pytest.mark.parametrize("mode", ["refuse", "down", "break"])
async def test_a_local_call_that_fails_takes_its_rows_back_with_it(desk: Desk, mode: str) -> None:
    address = await desk.plan(("jot", {"text": "gone", "mode": mode}))
    assert (await desk.run_tool(address)).state is S.FAILED
    assert await desk.value("SELECT count(*) FROM entities WHERE created_by_turn = $1", address.turn_id) == 0
    kept = "SELECT count(*) FROM working_memory WHERE conversation_id = $1"
    assert await desk.value(kept, address.conversation_id) == 0


async def test_a_local_call_whose_worker_dies_before_the_commit_never_happened(desk: Desk) -> None:
    address = await desk.plan(("jot", {"text": "again", "mode": "wait"}))
    dying = await frozen_inside(desk, address)
    dying.cancel()
    await gathered(dying)
    assert await desk.value("SELECT count(*) FROM entities WHERE created_by_turn = $1", address.turn_id) == 0
    assert (await desk.run_tool(address, attempt=2)).state is S.DONE
    assert await desk.value("SELECT count(*) FROM entities WHERE created_by_turn = $1", address.turn_id) == 1
    memory = await desk.rows(
        "SELECT field, value FROM working_memory WHERE conversation_id = $1", address.conversation_id
    )
    assert [(row["field"], row["value"]) for row in memory] == [("jotting", "again")]


@pytest.mark.parametrize(("how", "times"), [("mistake", 1), ("answer", TOOL_ERRORS)])
async def test_a_mistake_in_a_tools_own_code_is_not_tried_again_and_an_odd_answer_is(
    desk: Desk, how: str, times: int
) -> None:
    address = await desk.plan(("stumble", {"how": how}), agent_id="voiced")
    call, before = await desk.tool_call(address, "t1.0", "voiced"), desk.world.count("/look")
    for attempt in range(1, times + 1):
        work = desk.activity(ToolActivities(desk.deps).run, call, attempt=attempt)
        if attempt < times:
            with pytest.raises(ApplicationError) as raised:
                await work
            assert raised.value.type == "tool_unavailable"
        else:
            assert (await work).state is S.FAILED
    assert desk.world.count("/look") == before + times


async def test_a_read_that_used_its_time_fails_at_once(desk: Desk) -> None:
    address = await desk.plan(("slow_look", {}))
    outcome = await desk.run_tool(address)
    assert outcome.state is S.FAILED
    assert outcome.message is not None and "0.3" in outcome.message.text


@pytest.mark.parametrize(
    ("tool", "state"), [("shout", S.OUTCOME_UNKNOWN), ("book", S.OUTCOME_UNKNOWN), ("look", S.FAILED)]
)
async def test_a_stop_inside_a_call_records_what_may_have_happened(desk: Desk, tool: str, state: CallState) -> None:
    address = await desk.plan((tool, {"mode": "wait"}))
    environment = ActivityEnvironment()
    running = desk.world.running
    call = await desk.tool_call(address, "t1.0")
    work: Any = asyncio.create_task(environment.run(ToolActivities(desk.deps).run, call))
    await until(lambda: desk.world.running > running)
    environment.cancel(ActivityCancellationDetails(cancel_requested=True))
    outcome = await work
    assert outcome.state is state
    assert (await desk.call_row(address))["state"] == state.value


async def test_waiting_events_are_written_whatever_becomes_of_the_call_that_carries_them(desk: Desk) -> None:
    pending = tuple(PendingEvent(kind="node_start", at=NOW, number=n, data={"node": f"n{n}"}) for n in (1, 2))
    for tool, args in (("nobody", {}), ("look", {}), ("pay", {}), ("shout", {"mode": "break"})):
        address = await desk.plan((tool, args))
        call = (await desk.tool_call(address, "t1.0")).model_copy(update={"events": pending})
        for attempt in (1, 2):
            await desk.activity(ToolActivities(desk.deps).run, call, attempt=attempt)
        assert (await desk.kinds(address.turn_id)).count("node_start") == 2, tool
