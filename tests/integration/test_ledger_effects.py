"""`tools.run` on the real ledger: what each effect class promises, attempt by attempt, whoever dies or sleeps."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import asyncpg
import pytest
from temporalio.activity import ActivityCancellationDetails
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from perdure.activities import tools
from perdure.activities.tools import ToolActivities
from perdure.activities.turns import TurnActivities
from perdure.contracts.calls import CallState, ToolCall, ToolOutcome
from perdure.contracts.errors import InvariantBroken
from perdure.contracts.ids import effect_key
from perdure.contracts.turns import FinishRequest, TurnAddress, TurnStatus
from perdure.core.approvals.decisions import Decider
from perdure.core.calls.retries import TOOL_ERRORS
from perdure.sdk.tools import ToolContext
from perdure.store.calls import tool_calls
from perdure.store.calls.effects import settle_by_person
from perdure.store.database import Connection, Database
from perdure.store.turns.start import request_stop
from tests.conftest import KEYRING, Urls
from tests.desk import Desk, gathered, until

S = CallState
Patch = pytest.MonkeyPatch
ENTITIES = "SELECT count(*) FROM entities WHERE created_by_turn = $1"
OLDER = "UPDATE tool_calls SET first_sent_at = first_sent_at - interval '2 seconds' WHERE turn_id = $1"


@pytest.fixture(autouse=True)
async def nothing_goes_on(desk: Desk) -> None:
    """Calls in the mode `wait` wait anew, and earlier turns are over."""
    desk.world.go_on.clear()
    await desk.write("UPDATE turns SET status = 'stopped', ended_at = now() WHERE ended_at IS NULL")


async def tries(desk: Desk, address: TurnAddress, most: int = 8) -> ToolOutcome:
    """Attempts as Temporal makes them, until one returns."""
    for attempt in range(1, most):
        try:
            return await desk.run_tool(address, attempt=attempt)
        except ApplicationError as error:
            assert (error.type, error.non_retryable) == ("tool_unavailable", False)
    return await desk.run_tool(address, attempt=most)


async def frozen_inside(desk: Desk, address: TurnAddress) -> asyncio.Task[ToolOutcome]:
    """The first attempt, which has sent its request and hears nothing."""
    running = desk.world.running
    zombie = asyncio.create_task(desk.run_tool(address))
    await until(lambda: desk.world.running > running)
    return zombie


async def kill_while_sent(desk: Desk, address: TurnAddress) -> None:
    """The first attempt has sent its request when its worker dies."""
    dying = await frozen_inside(desk, address)
    dying.cancel()
    await gathered(dying)


TABLE = [
    # mode by attempt, how it ends, effects, requests
    ("book", "", S.DONE, 1, 1),
    ("book", "lose", S.DONE, 1, 2),
    ("book", "break,break,down,busy", S.DONE, 1, 5),
    ("book", "refuse", S.FAILED, 0, 1),
    ("book", "down,refuse", S.FAILED, 0, 2),
    ("book", "down,down,down,down,down", S.FAILED, 0, TOOL_ERRORS),
    # It may have happened, so a later "no" of whatever kind settles nothing.
    ("book", "break,refuse", S.OUTCOME_UNKNOWN, 1, 2),
    ("book", "lose,refuse", S.OUTCOME_UNKNOWN, 0, 2),
    ("book", "break,down,down,down,down", S.OUTCOME_UNKNOWN, 1, TOOL_ERRORS),
    ("book", "lose,lose,lose,lose,lose", S.OUTCOME_UNKNOWN, 0, TOOL_ERRORS),
    ("post", "", S.DONE, 1, 1),
    ("post", "break", S.OUTCOME_UNKNOWN, 1, 1),
    ("post", "lose", S.OUTCOME_UNKNOWN, 0, 1),
    ("post", "refuse", S.FAILED, 0, 1),
    ("post", "busy", S.FAILED, 0, 1),
    ("post", "down", S.DONE, 1, 2),
    ("post", "down,break", S.OUTCOME_UNKNOWN, 1, 2),
]


@pytest.mark.parametrize(("tool", "mode", "state", "effects", "requests"), TABLE)
async def test_a_keyed_call_is_sent_under_one_key_and_an_opaque_one_once_and_neither_is_called_undone(
    desk: Desk, tool: str, mode: str, state: CallState, effects: int, requests: int
) -> None:
    keyed = tool == "book"
    address = await (desk.plan if keyed else desk.approved)((tool, {"mode": mode}))
    outcome = await tries(desk, address)
    key = effect_key(address.turn_id, "t1.0") if keyed else f"{address.turn_id}/t1.0"
    assert outcome.state is state
    assert desk.world.effects.count((f"/{tool}", key)) == effects
    assert (await desk.call_row(address))["state"] == state
    for attempt, run_id in ((9, "run-1"), (1, "run-2")):
        again = await desk.run_tool(address, attempt=attempt, run_id=run_id)
        assert again == outcome, "settled: every later attempt hears the same"
    assert desk.world.requests[key] == requests
    assert keyed or (await desk.approval_row(address))["status"] == state.value


@pytest.mark.parametrize("tool", ["shout", "post"])
async def test_a_worker_that_dies_inside_an_opaque_call_leaves_it_to_a_person(desk: Desk, tool: str) -> None:
    address = await (desk.approved if tool == "post" else desk.plan)((tool, {"mode": "wait"}))
    await kill_while_sent(desk, address)
    assert (await desk.call_row(address))["state"] == "reserved"
    effects = len(desk.world.effects)
    for attempt in (2, 3):
        outcome = await desk.run_tool(address, attempt=attempt)
        assert (outcome.state, outcome.message) == (S.OUTCOME_UNKNOWN, None)
        assert (await desk.kinds(address.turn_id)).count("tool.error") == 1, "said once"
    assert len(desk.world.effects) == effects, "never sent again"


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


@pytest.mark.parametrize(("tool", "epoch"), [("shout", 1), ("book", 2)])
async def test_a_worker_that_wakes_after_a_settle_is_refused_and_counted(desk: Desk, tool: str, epoch: int) -> None:
    address = await desk.plan((tool, {"mode": "wait"}))
    key, reviewer = effect_key(address.turn_id, "t1.0"), desk.people["reviewer"]
    zombie = await frozen_inside(desk, address)
    outcome = await desk.run_tool(address, attempt=2)
    if outcome.state is S.OUTCOME_UNKNOWN:
        async with desk.db.transaction("local") as tx:
            await settle_by_person(tx, key, Decider(reviewer.user_id, reviewer.roles, "reviewer"), "happened", "seen")
    desk.world.go_on.set()
    (late,) = await gathered(zombie)
    assert isinstance(late, ApplicationError) and (late.type, late.non_retryable) == ("settle_refused", False)
    row = await desk.call_row(address)
    assert (row["state"], row["epoch"], row["lost_settles"]) == ("done", epoch, 1)
    assert row["comment"] == ("seen" if tool == "shout" else None)
    assert desk.world.effects.count((f"/{tool}", key if tool == "book" else f"{address.turn_id}/t1.0")) == 1
    messages = await desk.value("SELECT count(*) FROM messages WHERE turn_id = $1 AND role = 'tool'", address.turn_id)
    assert messages == 1


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
    made = await desk.value(ENTITIES, address.turn_id)
    assert made + desk.world.effects.count(("/book", effect_key(address.turn_id, "t1.0"))) == 1


@pytest.mark.parametrize("mode", ["refuse", "down", "break"])
async def test_a_local_call_that_fails_takes_its_rows_back_with_it(desk: Desk, mode: str) -> None:
    address = await desk.plan(("jot", {"text": "gone", "mode": mode}))
    assert (await desk.run_tool(address)).state is S.FAILED
    assert await desk.value(ENTITIES, address.turn_id) == 0
    kept = "SELECT count(*) FROM working_memory WHERE conversation_id = $1"
    assert await desk.value(kept, address.conversation_id) == 0


async def test_a_local_call_whose_worker_dies_before_the_commit_never_happened(desk: Desk) -> None:
    address = await desk.plan(("jot", {"text": "again", "mode": "wait"}))
    await kill_while_sent(desk, address)
    assert await desk.value(ENTITIES, address.turn_id) == 0
    assert (await desk.run_tool(address, attempt=2)).state is S.DONE
    assert await desk.value(ENTITIES, address.turn_id) == 1
    kept = "SELECT field, value FROM working_memory WHERE conversation_id = $1"
    assert [tuple(row) for row in await desk.rows(kept, address.conversation_id)] == [("jotting", "again")]


@pytest.mark.parametrize(("how", "times"), [("mistake", 1), ("answer", TOOL_ERRORS)])
async def test_a_mistake_of_a_tools_own_is_not_tried_again_an_odd_answer_is(desk: Desk, how: str, times: int) -> None:
    address = await desk.plan(("stumble", {"how": how}), agent_id="voiced")
    call, before = await desk.tool_call(address, "t1.0", "voiced"), desk.world.count("/look")
    for attempt in range(1, times):
        with pytest.raises(ApplicationError) as raised:
            await desk.activity(ToolActivities(desk.deps).run, call, attempt=attempt)
        assert raised.value.type == "tool_unavailable"
    assert (await desk.activity(ToolActivities(desk.deps).run, call, attempt=times)).state is S.FAILED
    assert desk.world.count("/look") == before + times


async def test_a_read_that_used_its_time_fails_at_once(desk: Desk) -> None:
    outcome = await desk.run_tool(await desk.plan(("slow_look", {})))
    assert outcome.state is S.FAILED
    assert outcome.message is not None and "0.3" in outcome.message.text


@pytest.mark.parametrize(
    ("tool", "state"), [("shout", S.OUTCOME_UNKNOWN), ("book", S.OUTCOME_UNKNOWN), ("look", S.FAILED)]
)
async def test_a_stop_inside_a_call_records_what_may_have_happened(desk: Desk, tool: str, state: CallState) -> None:
    address = await desk.plan((tool, {"mode": "wait"}))
    environment, running = ActivityEnvironment(), desk.world.running
    call = await desk.tool_call(address, "t1.0")
    work: Any = asyncio.create_task(environment.run(ToolActivities(desk.deps).run, call))
    await until(lambda: desk.world.running > running)
    environment.cancel(ActivityCancellationDetails(cancel_requested=True))
    assert (await work).state is state
    assert (await desk.call_row(address))["state"] == state.value


# An attempt that may not send any more: what it leaves of a call that an attempt before it may have sent.


async def unsent(desk: Desk, address: TurnAddress, attempt: int) -> None:
    """An attempt that ends without sending, to be tried again."""
    with pytest.raises(ApplicationError) as raised:
        await desk.run_tool(address, attempt=attempt)
    assert (raised.value.type, raised.value.non_retryable) == ("tool_unavailable", False)


def unreadable(monkeypatch: Patch) -> None:
    """Claims are old when they return, so the ledger is asked again who owns the call; it does not answer, once."""
    monkeypatch.setattr(tools, "FRESH_SECONDS", 0.0)

    async def broken(tx: Connection, call: ToolCall, epoch: int) -> bool:
        monkeypatch.setattr(tool_calls, "still_owned", real)
        raise OSError("connection reset")

    real = tool_calls.still_owned
    monkeypatch.setattr(tool_calls, "still_owned", broken)


async def test_a_call_that_was_sent_stays_open_to_settle_if_a_stop_meets_it(desk: Desk, monkeypatch: Patch) -> None:
    address = await desk.plan(("book", {"mode": "wait"}))
    await kill_while_sent(desk, address)
    owned = tool_calls.still_owned

    async def stopped_first(tx: Connection, call: ToolCall, epoch: int) -> bool:
        async with desk.db.transaction("local") as other:
            await request_stop(other, address.turn_id, desk.people["requester"].user_id)
        return await owned(tx, call, epoch)

    monkeypatch.setattr(tools, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(tool_calls, "still_owned", stopped_first)
    await unsent(desk, address, 2)
    row = await desk.call_row(address)
    assert row["state"] == "reserved" and row["first_sent_at"] is not None
    await desk.activity(TurnActivities(desk.deps).finish, FinishRequest(address=address, status=TurnStatus.STOPPED))
    assert (await desk.call_row(address))["state"] == "outcome_unknown"
    assert desk.world.effects.count(("/book", effect_key(address.turn_id, "t1.0"))) == 1


@pytest.mark.parametrize("could_not_tell", [False, True], ids=["", "after an attempt that could not tell"])
@pytest.mark.parametrize(("tool", "state", "sent"), [("book", S.DONE, 2), ("brief_key", S.OUTCOME_UNKNOWN, 1)])
async def test_a_keyed_call_whose_worker_dies_is_sent_again_unless_its_key_has_grown_old_since_the_first_send(
    desk: Desk, monkeypatch: Patch, tool: str, state: CallState, sent: int, could_not_tell: bool
) -> None:
    address = await desk.plan((tool, {"mode": "wait"}))
    await kill_while_sent(desk, address)
    if could_not_tell:
        unreadable(monkeypatch)
        await unsent(desk, address, 2)
    await desk.write(OLDER, address.turn_id)
    assert (await desk.run_tool(address, attempt=3)).state is state
    key = effect_key(address.turn_id, "t1.0")
    assert (desk.world.requests[key], desk.world.effects.count((f"/{tool}", key))) == (sent, 1)


@pytest.mark.parametrize("tool", ["book", "shout", "look"])
async def test_a_call_that_nobody_can_have_sent_is_planned_anew(desk: Desk, monkeypatch: Patch, tool: str) -> None:
    address = await desk.plan((tool, {}))
    unreadable(monkeypatch)
    await unsent(desk, address, 1)
    row = await desk.call_row(address)
    assert (row["state"], row["first_sent_at"], row["errors"]) == ("planned", None, 1)
    assert (await desk.run_tool(address, attempt=2)).state is S.DONE


async def test_a_claim_made_before_the_machine_slept_is_not_fresh(desk: Desk, monkeypatch: Patch) -> None:
    address = await desk.plan(("book", {}))
    slept, asked, real = [0.0], [0], time.clock_gettime
    reserve, owned = tool_calls.reserve, tool_calls.still_owned

    async def then_sleeps(*given: Any) -> int:
        slept[0] = 60.0
        return await reserve(*given)

    async def counted(tx: Connection, call: ToolCall, epoch: int) -> bool:
        asked[0] += 1
        return await owned(tx, call, epoch)

    # As Linux has it: CLOCK_BOOTTIME goes on while the machine sleeps, CLOCK_MONOTONIC and time.monotonic() do not.
    awake_or_not = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    monkeypatch.setattr(time, "clock_gettime", lambda clock: real(clock) + (slept[0] if clock == awake_or_not else 0.0))
    monkeypatch.setattr(tool_calls, "reserve", then_sleeps)
    monkeypatch.setattr(tool_calls, "still_owned", counted)
    assert (await desk.run_tool(address)).state is S.DONE
    assert asked == [1]


# Postgres goes away under a `local` call: that is no answer of the tool's, so the next attempt does the call.


@asynccontextmanager
async def entities_locked(urls: Urls) -> AsyncIterator[None]:
    """The table into which the tool writes makes it wait."""
    owner = await asyncpg.connect(urls.owner)
    async with owner.transaction():
        await owner.execute("LOCK TABLE perdure.entities IN ACCESS EXCLUSIVE MODE")
        yield
    await owner.close()


async def cut(urls: Urls, where: str) -> None:
    """End the module's one connection of which `where` holds, as a restart of Postgres would."""
    admin = await asyncpg.connect(urls.admin)
    found = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND usename = 'perdure_app' AND "
    for _ in range(3_000):
        if await admin.fetch(found + where, urls.app.rpartition("/")[2]):
            break
        await asyncio.sleep(0.01)
    else:
        raise AssertionError("the tool never came to wait")
    await admin.close()


async def is_left_to_the_next_attempt(desk: Desk, address: TurnAddress, attempt: asyncio.Task[ToolOutcome]) -> None:
    """The attempt failed with Postgres, nothing is settled or counted as lost; the next one does the call, once."""
    (failure,) = await gathered(attempt)
    assert isinstance(failure, ApplicationError), failure
    assert (failure.type, failure.non_retryable) == ("store_unavailable", False)
    row = await desk.call_row(address)
    assert (row["state"], row["lost_settles"], row["outcome"]) == ("reserved", 0, None)
    assert (await desk.run_tool(address, attempt=2)).state is S.DONE
    assert await desk.value(ENTITIES, address.turn_id) == 1


async def test_a_connection_that_breaks_inside_the_tool(desk: Desk, urls: Urls) -> None:
    address = await desk.approved(("jot", {}))
    async with entities_locked(urls):
        attempt = asyncio.create_task(desk.run_tool(address))
        await cut(urls, "wait_event_type = 'Lock'")
    await is_left_to_the_next_attempt(desk, address, attempt)


async def test_a_statement_that_hangs_inside_the_tool(desk: Desk, urls: Urls) -> None:
    address = await desk.approved(("jot", {}))
    impatient = await Database.connect(urls.app, wait_seconds=2.0, keyring=KEYRING)
    activity = ToolActivities(replace(desk.deps, db=impatient)).run
    async with entities_locked(urls):
        attempt = asyncio.create_task(desk.activity(activity, await desk.tool_call(address, "t1.0")))
        await gathered(attempt)
    await impatient.close()
    await is_left_to_the_next_attempt(desk, address, attempt)


async def test_a_connection_that_breaks_between_the_tool_and_its_settle(desk: Desk, urls: Urls) -> None:
    address = await desk.approved(("jot", {"mode": "wait"}))
    attempt = await frozen_inside(desk, address)
    await cut(urls, "state = 'idle in transaction'")
    desk.world.go_on.set()
    await is_left_to_the_next_attempt(desk, address, attempt)


async def test_no_free_connection_for_the_tool(desk: Desk, monkeypatch: Patch) -> None:
    address = await desk.approved(("jot", {}))
    real = desk.db.transaction

    def busy_once(tenant_id: str, turn_id: str | None = None) -> Any:
        if turn_id is not None:  # the claim
            return real(tenant_id, turn_id)
        monkeypatch.setattr(desk.db, "transaction", real)
        raise TimeoutError  # as the pool does after its wait

    call = await desk.tool_call(address, "t1.0")
    monkeypatch.setattr(desk.db, "transaction", busy_once)
    attempt = asyncio.create_task(desk.activity(ToolActivities(desk.deps).run, call))
    await gathered(attempt)
    await is_left_to_the_next_attempt(desk, address, attempt)


async def test_a_tools_time_out_fails_it_and_a_fault_of_ours_is_no_lost_settle(desk: Desk, monkeypatch: Patch) -> None:
    raised: Exception = TimeoutError()  # as `send` does when the target is silent

    async def broken(context: ToolContext, *given: Any, **named: Any) -> None:
        raise raised

    monkeypatch.setattr(ToolContext, "send", broken)
    assert (await desk.run_tool(await desk.plan(("jot", {})))).state is S.FAILED
    raised = InvariantBroken("odd_ledger", "something of ours is broken")
    address = await desk.plan(("jot", {}))
    with pytest.raises(ApplicationError) as found:
        await desk.run_tool(address)
    assert found.value.type == "odd_ledger"
    assert (await desk.call_row(address))["lost_settles"] == 0
