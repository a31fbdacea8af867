"""`tools.run` on the real ledger: what each effect class promises, whatever dies or sleeps; answers too large."""

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import AsyncMock

import asyncpg
import httpx
import psutil
import pytest
from pydantic import AfterValidator
from temporalio.activity import ActivityCancellationDetails
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from perdure.activities import tools
from perdure.activities.dependencies import Deps
from perdure.activities.toolbox.registry import Toolbox
from perdure.activities.tools import ToolActivities
from perdure.contracts.calls import CallState, KnownEnd, ToolCall, ToolOutcome
from perdure.contracts.errors import InvariantBroken
from perdure.contracts.ids import effect_key
from perdure.contracts.turns import TurnAddress
from perdure.core.calls.failures import known as known_end
from perdure.core.calls.hangs import MAX_HANGS, Doing, OpenCall
from perdure.core.calls.ledger import MAX_LOST_ATTEMPTS
from perdure.core.calls.retries import ATTEMPTS, TOOL_ERRORS
from perdure.egress import Transport
from perdure.sdk.outcomes import CallTimeout, ToolRefused, ToolUnavailable
from perdure.sdk.parameters import Parameters
from perdure.sdk.tools import ToolContext
from perdure.store.calls import effects, tool_calls
from perdure.store.database import Connection, Database
from tests.conftest import KEYRING, Urls
from tests.doubles.hostile_target import MEBI, Talk, Target, bomb, floods, says, threaded
from tests.doubles.target import app_agents
from tests.eventually import until
from tests.harness import Harness, gathered
from tests.local_egress import LOCAL_OUTBOUND

S = CallState
Patch = pytest.MonkeyPatch
ENTITIES = "SELECT count(*) FROM entities WHERE created_by_turn = $1"
OLDER = "UPDATE tool_calls SET first_sent_at = first_sent_at - interval '2 seconds' WHERE turn_id = $1"


@pytest.fixture(autouse=True)
async def no_open_turns(harness: Harness) -> None:
    """Calls in the mode `wait` wait again, and earlier turns have ended."""
    harness.world.go_on.clear()
    await harness.write("UPDATE turns SET status = 'stopped', ended_at = now() WHERE ended_at IS NULL")


async def tries(harness: Harness, address: TurnAddress, most: int = 8) -> ToolOutcome:
    for attempt in range(1, most):
        try:
            return await harness.run_tool(address, attempt=attempt)
        except ApplicationError as error:
            assert (error.type, error.non_retryable) == ("tool_unavailable", False)
    return await harness.run_tool(address, attempt=most)


async def frozen_inside(harness: Harness, address: TurnAddress) -> asyncio.Task[ToolOutcome]:
    """The first attempt, which has sent its request and gets no answer."""
    running = harness.world.running
    zombie = asyncio.create_task(harness.run_tool(address))
    await until(lambda: harness.world.running > running)
    return zombie


async def kill_while_sent(harness: Harness, address: TurnAddress) -> None:
    """The first attempt has sent its request when its worker dies."""
    dying = await frozen_inside(harness, address)
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
async def test_a_keyed_call_keeps_its_key_and_an_opaque_one_is_sent_once(
    harness: Harness, tool: str, mode: str, state: CallState, effects: int, requests: int
) -> None:
    keyed = tool == "book"
    address = await (harness.plan if keyed else harness.approved)((tool, {"mode": mode}))
    outcome = await tries(harness, address)
    key = effect_key(address.turn_id, "t1.0") if keyed else f"{address.turn_id}/t1.0"
    assert outcome.state is state
    assert harness.world.effects.count((f"/{tool}", key)) == effects
    assert (await harness.call_row(address))["state"] == state
    for attempt, run_id in ((9, "run-1"), (1, "run-2")):
        again = await harness.run_tool(address, attempt=attempt, run_id=run_id)
        assert again == outcome, "settled: every later attempt hears the same"
    assert harness.world.requests[key] == requests
    assert keyed or (await harness.approval_row(address))["status"] == state.value


async def test_a_late_worker_that_knows_the_outcome_settles_an_effect_marked_unknown(harness: Harness) -> None:
    address = await harness.plan(("shout", {"mode": "wait"}))
    zombie = await frozen_inside(harness, address)
    for attempt in (2, 3):
        unknown = await harness.run_tool(address, attempt=attempt)
        assert (unknown.state, unknown.message) == (S.OUTCOME_UNKNOWN, None)
        assert (await harness.kinds(address.turn_id)).count("tool.error") == 1, "said once"
    harness.world.go_on.set()
    late = await zombie
    assert late.state is S.DONE
    row = await harness.call_row(address)
    assert (row["state"], row["lost_settles"]) == ("done", 0)
    assert await harness.run_tool(address, attempt=4) == late
    assert harness.world.effects.count(("/shout", f"{address.turn_id}/t1.0")) == 1, "never sent again"


@pytest.mark.parametrize(("most", "hangs"), [(MAX_LOST_ATTEMPTS, False), (MAX_HANGS, True)])
@pytest.mark.parametrize(("tool", "state"), [("look", S.FAILED), ("book", S.OUTCOME_UNKNOWN)])
async def test_a_call_that_lost_many_workers_or_hung_twice_is_not_run_again(
    harness: Harness, tool: str, state: CallState, most: int, hangs: bool
) -> None:
    address = await harness.plan((tool, {"mode": ",".join(["wait"] * most)}))
    for attempt in range(1, most + 1):
        running = harness.world.running
        dying = asyncio.create_task(harness.run_tool(address, attempt=attempt))
        await until(lambda running=running: harness.world.running > running)  # type: ignore[misc]
        dying.cancel()
        await gathered(dying)
        hung = OpenCall("local", address.turn_id, "t1.0", attempt, tool, Doing.STEPS)
        for _ in range(2 * hangs):  # a start that is interrupted can read it again
            async with harness.db.transaction("local") as tx:
                await tool_calls.count_hang(tx, hung)
    requests = sum(harness.world.requests.values())
    for attempt in (most + 1, most + 2):
        outcome = await harness.run_tool(address, attempt=attempt)
        assert outcome.state is state and sum(harness.world.requests.values()) == requests
        assert bool(outcome.problem and outcome.problem.code == "tool_hung") is (hangs and tool == "look")
    (said,) = await harness.event_data(address.turn_id, "tool.error")
    assert state is S.FAILED or said["known"]["code"] == ("worker_hung" if hangs else "worker_lost")


@pytest.mark.parametrize(("tool", "change"), [
    ("shout", ""),
    ("book", "tool_calls SET first_sent_at = now() - interval '1 year' WHERE turn_id"),
    ("book", f"tool_calls SET epoch = {MAX_LOST_ATTEMPTS} WHERE turn_id"),
    ("book", "turns SET stop_requested_at = now() WHERE id"),
])  # fmt: skip
async def test_a_sent_call_waits_for_its_version_only_while_it_may_be_sent_again(
    harness: Harness, monkeypatch: Patch, tool: str, change: str
) -> None:
    address = await harness.plan((tool, {"mode": "wait"}))
    await kill_while_sent(harness, address)
    monkeypatch.setattr(harness.deps.toolbox, "_tools", {})
    if change:
        with pytest.raises(ApplicationError) as waits:
            await harness.run_tool(address, attempt=2)
        assert waits.value.type == "tool_not_here"
        await harness.write(f"UPDATE {change} = $1", address.turn_id)
    assert (await harness.run_tool(address, attempt=3)).state is S.OUTCOME_UNKNOWN


@pytest.mark.parametrize(("attempt", "waits", "is_last", "code"), [
    (ATTEMPTS, 0, True, "tool_unavailable"),
    (ATTEMPTS, 1, False, "tool_unavailable"),
    (ATTEMPTS + 1, 0, True, "activity_timeout"),
])  # fmt: skip
async def test_attempts_that_do_more_than_wait_are_limited(
    harness: Harness, attempt: int, waits: int, is_last: bool, code: str
) -> None:
    address = await harness.plan(("look", {"mode": "down"}))
    call, heartbeat = await harness.tool_call(address, "t1.0"), [[waits, "2026-01-01T00:00:00+00:00"]]
    with pytest.raises(ApplicationError) as error:
        await harness.activity(ToolActivities(harness.deps).run, call, attempt=attempt, heartbeat=heartbeat)
    assert (error.value.type, error.value.non_retryable) == (code, is_last)
    assert attempt > ATTEMPTS or heartbeat == [[waits, ""]], "its worker had the version, so the wait begins again"


@pytest.mark.parametrize(("tool", "epoch"), [("shout", 1), ("book", 2)])
async def test_a_worker_that_wakes_after_a_settle_is_refused(harness: Harness, tool: str, epoch: int) -> None:
    address = await harness.plan((tool, {"mode": "wait"}))
    key = effect_key(address.turn_id, "t1.0")
    zombie = await frozen_inside(harness, address)
    if (await harness.run_tool(address, attempt=2)).state is S.OUTCOME_UNKNOWN:
        await harness.settle(address, comment="seen")
    harness.world.go_on.set()
    (late,) = await gathered(zombie)
    assert isinstance(late, ApplicationError) and (late.type, late.non_retryable) == ("settle_refused", False)
    row = await harness.call_row(address)
    assert (row["state"], row["epoch"], row["lost_settles"]) == ("done", epoch, 1)
    assert row["comment"] == ("seen" if tool == "shout" else None)
    assert harness.world.effects.count((f"/{tool}", key if tool == "book" else f"{address.turn_id}/t1.0")) == 1
    messages = "SELECT count(*) FROM messages WHERE turn_id = $1 AND role = 'tool'"
    assert await harness.value(messages, address.turn_id) == 1


@pytest.mark.parametrize("tool", ["jot", "book"], ids=["local", "keyed"])
async def test_many_attempts_at_once_do_a_call_once(harness: Harness, tool: str) -> None:
    """An attempt that does not settle gets the stored result, or a lost claim."""
    address = await harness.plan((tool, {"text": "once"} if tool == "jot" else {}))
    outcomes = await gathered(*(harness.run_tool(address, attempt=attempt) for attempt in range(1, 11)))
    settled = await harness.run_tool(address, attempt=11)
    assert settled.state is S.DONE and settled in outcomes
    for outcome in outcomes:
        if isinstance(outcome, ToolOutcome):
            assert outcome == settled or (outcome.problem is not None and outcome.problem.code == "stale_attempt")
        else:
            assert isinstance(outcome, ApplicationError) and outcome.type in ("settle_refused", "tool_unavailable")
    assert (await harness.kinds(address.turn_id)).count("tool.result") == 1
    made = await harness.value(ENTITIES, address.turn_id)
    assert made + harness.world.effects.count(("/book", effect_key(address.turn_id, "t1.0"))) == 1


@pytest.mark.parametrize("mode", ["refuse", "down", "break"])
async def test_a_local_call_that_fails_takes_its_rows_back_with_it(harness: Harness, mode: str) -> None:
    address = await harness.plan(("jot", {"text": "gone", "mode": mode}))
    assert (await harness.run_tool(address)).state is S.FAILED
    assert await harness.value(ENTITIES, address.turn_id) == 0
    kept = "SELECT count(*) FROM working_memory WHERE conversation_id = $1"
    assert await harness.value(kept, address.conversation_id) == 0


async def test_a_local_call_whose_worker_dies_before_the_commit_never_happened(harness: Harness) -> None:
    address = await harness.plan(("jot", {"text": "again", "mode": "wait"}))
    await kill_while_sent(harness, address)
    assert await harness.value(ENTITIES, address.turn_id) == 0
    assert (await harness.run_tool(address, attempt=2)).state is S.DONE
    assert await harness.value(ENTITIES, address.turn_id) == 1
    kept = "SELECT field, value FROM working_memory WHERE conversation_id = $1"
    assert [tuple(row) for row in await harness.rows(kept, address.conversation_id)] == [("jotting", "again")]


@pytest.mark.parametrize(
    ("how", "times", "failure"),
    [
        ("mistake", 1, r"AttributeError: .+ at tools/desk\.py:\d+"),
        ("missing", 1, r"KeyError: 'missing' at tools/desk\.py:\d+"),
        ("cancelled", 1, r"CancelledError at tools/desk\.py:\d+"),
        ("parts", 1, r"KeyError: 'lost' at tools/desk\.py:\d+ \(first of 2 errors\)"),
        ("odd", 1, r"UnusableResult: .+ at tools/desk\.py:\d+"),
        ("impatient", TOOL_ERRORS, r"TimeoutError at tools/desk\.py:\d+"),
        ("answer", TOOL_ERRORS, r"JSONDecodeError: .+ at tools/desk\.py:\d+"),
    ],
)
async def test_an_error_of_the_tool_is_not_retried_and_an_odd_answer_is(
    harness: Harness, how: str, times: int, failure: str
) -> None:
    address = await harness.plan(("stumble", {"how": how}), agent_id="voiced")
    call, before = await harness.tool_call(address, "t1.0", "voiced"), harness.world.count("/look")
    for attempt in range(1, times):
        with pytest.raises(ApplicationError) as raised:
            await harness.activity(ToolActivities(harness.deps).run, call, attempt=attempt)
        assert raised.value.type == "tool_unavailable"
    assert (await harness.activity(ToolActivities(harness.deps).run, call, attempt=times)).state is S.FAILED
    assert harness.world.count("/look") == before + times
    (error,) = await harness.event_data(address.turn_id, "tool.error")
    assert re.fullmatch(failure, error["failure"])
    settled = str((await harness.call_row(address))["outcome"]) + str(error["result"])
    assert "missing" not in settled and "desk.py" not in settled, "the model and Temporal receive only the class"


async def _before(context: ToolContext, **given: Any) -> None:
    raise KeyError("missing")


async def _after(context: ToolContext, **given: Any) -> None:
    await context.send("POST", "http://desk.test/post", json={"call": context.turn_id})
    raise ValueError("a value")


async def _odd(context: ToolContext, **given: Any) -> Any:
    await context.send("POST", "http://desk.test/post", json={"call": context.turn_id})
    return object()


async def _broken(context: ToolContext, **given: Any) -> None:
    await context.send("POST", "http://desk.test/post", json={"call": context.turn_id, "mode": "break"})


async def _broken_first(context: ToolContext, **given: Any) -> None:
    try:
        await _broken(context)
    finally:
        await context.send("POST", "http://desk.test/post", json={"call": context.turn_id})


async def _rejected(context: ToolContext, method: str = "POST", **given: Any) -> None:
    answer = httpx.Response(500, request=httpx.Request(method, "http://desk.test"))
    raise httpx.HTTPStatusError("desk.test answered 500: out of paper", request=answer.request, response=answer)


async def _in_group(context: ToolContext, **given: Any) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_rejected(context))
        group.create_task(_after(context))


async def _mistaken_answer(context: ToolContext, **given: Any) -> None:
    answer = await context.send("GET", "http://desk.test/look", json={"call": context.turn_id})
    raise KeyError(f"status {answer.status_code}")


async def _cancels_itself(context: ToolContext, **given: Any) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(60)


async def _replaces_its_end(context: ToolContext, **given: Any) -> None:
    try:
        await context.send("GET", "http://desk.test/look", json={"mode": "wait", "call": context.turn_id})
    except asyncio.CancelledError:
        raise ValueError("the client is closed") from None


async def _unasked(context: ToolContext, **given: Any) -> None:
    raise httpx.HTTPStatusError("a value", request=None, response=httpx.Response(500))  # type: ignore[arg-type]


async def _own_limit(context: ToolContext, **given: Any) -> None:
    raise TimeoutError("a value") from httpx.ReadTimeout("of a client of the tool's own")


async def _parts_wait(context: ToolContext, **given: Any) -> None:
    raise ExceptionGroup("parts", [CallTimeout("a value"), CallTimeout("another")])  # as context.send does


async def _looked(context: ToolContext, **given: Any) -> None:
    await _rejected(context, "GET")


async def test_a_call_out_of_time_names_the_line_that_waited(harness: Harness) -> None:
    address = await harness.plan(("slow_look", {}))
    assert (await harness.run_tool(address)).state is S.FAILED
    (error,) = await harness.event_data(address.turn_id, "tool.error")
    assert re.fullmatch(r"TimeoutError at tools/desk\.py:\d+", error["failure"])


def _plain(context: ToolContext, **given: Any) -> None:
    sys.exit("a value")


async def _interrupts(context: ToolContext, **given: Any) -> None:
    raise KeyboardInterrupt("a value")


async def _impatient(context: ToolContext, **given: Any) -> None:
    async with asyncio.timeout(0.2):
        await context.send("POST", "http://desk.test/post", json={"call": context.turn_id, "mode": "wait"})


class _Mean(Exception):
    def __str__(self) -> str:
        raise SystemExit


async def _twice(context: ToolContext, **given: Any) -> None:
    for _ in range(2):
        await context.send("POST", "http://desk.test/post", json={"call": context.turn_id, "mode": ",refuse"})


async def _mean(context: ToolContext, **given: Any) -> None:
    raise _Mean


async def _parts(context: ToolContext, **given: Any) -> None:
    raise ExceptionGroup("parts", [ToolUnavailable("away"), ExceptionGroup("more", [ToolRefused("no paper")])])


async def _sent_parts(context: ToolContext, **given: Any) -> None:
    await context.send("POST", "http://desk.test/post", json={"call": context.turn_id})
    await _parts(context)


def with_tool(harness: Harness, name: str, **given: Any) -> Deps:
    """The worker's clients, with this tool of the desk changed."""
    tool = next(tool for agent, tool in app_agents()[1] if (agent, tool.card.name) == ("desk", name))
    own = [("desk", replace(tool, folder=Path(__file__).parent, **given))]
    return replace(harness.deps, toolbox=Toolbox(own, lambda name: None, harness.deps.toolbox.http))


def _lookup(text: str) -> str:
    return {"known": text}[text]


async def _checked(context: ToolContext, text: Annotated[str, AfterValidator(_lookup)] = "x") -> None: ...


@pytest.mark.parametrize("tool", ["jot", "look", "shout"])
async def test_a_group_of_refusals_and_unavailabilities_is_refused(harness: Harness, tool: str) -> None:
    address = await harness.plan((tool, {}))
    running = ToolActivities(with_tool(harness, tool, function=_parts))
    ended = await harness.activity(running.run, await harness.tool_call(address, "t1.0"))
    assert ended.state is S.FAILED and ended.message is not None and "no paper" in ended.message.text


@pytest.mark.parametrize("tool", ["jot", "shout"])
async def test_a_validator_that_crashes_names_its_place(harness: Harness, tool: str) -> None:
    address = await harness.plan((tool, {"text": "missing"}))
    running = ToolActivities(with_tool(harness, tool, parameters=Parameters.of(_checked)))
    ended = await harness.activity(running.run, await harness.tool_call(address, "t1.0"))
    assert ended.state is S.FAILED
    (error,) = await harness.event_data(address.turn_id, "tool.error")
    assert error["failure"].endswith(f"{Path(__file__).name}:{_lookup.__code__.co_firstlineno + 1}")


@pytest.mark.parametrize(
    ("function", "known", "failure"),
    [
        (_before, "raised", "KeyError: 'missing' at test_ledger_effects.py:"),
        (_plain, "raised", "SystemExit: a value at test_ledger_effects.py:"),
        (_interrupts, "raised", "KeyboardInterrupt: a value at test_ledger_effects.py:"),
        (_impatient, "raised_after_send", "TimeoutError at test_ledger_effects.py:"),
        (_twice, "raised_after_send", ""),
        (_sent_parts, "raised_after_send", ""),
        (_unasked, "raised", "HTTPStatusError: a value at "),
        (_own_limit, "raised", "TimeoutError: a value at "),
        (_parts_wait, "timed_out", "CallTimeout: a value at "),
        (_mean, "raised", "_Mean at test_ledger_effects.py:"),
        (_after, "raised_after_send", "ValueError: a value at test_ledger_effects.py:"),
        (_odd, "raised_after_send", "UnusableResult: "),
        (_broken_first, "no_answer", "ReadError: reset at test_ledger_effects.py:"),
        (_in_group, "answered_error", "HTTPStatusError: desk.test answered 500: out of paper at "),
        (_looked, "raised", "HTTPStatusError: desk.test answered 500: out of paper at "),
        (_mistaken_answer, "raised_before_send", "KeyError: 'status 200' at "),
        (_cancels_itself, "raised", "CancelledError at test_ledger_effects.py:"),
        (None, "worker_lost", ""),
    ],
)
@pytest.mark.parametrize("shows", [True, False])
async def test_what_is_known_of_an_opaque_call_is_recorded(
    harness: Harness, function: Any, known: str, failure: str, shows: bool
) -> None:
    deps = with_tool(harness, "shout", **({"function": function} if function else {}))
    running = ToolActivities(replace(deps, shows_failure_messages=shows))
    address = await harness.plan(("shout", {"mode": "wait"}))
    if function is None:
        await kill_while_sent(harness, address)
    ended = await harness.activity(running.run, await harness.tool_call(address, "t1.0"), attempt=2)
    assert ended.state is S.OUTCOME_UNKNOWN
    async with harness.db.transaction("local") as tx:
        effect = await effects.get_effect(tx, effect_key(address.turn_id, "t1.0"), None)
    assert effect["known"]["code"] == known  # type: ignore[index]
    shown = str(effect["failure"] or "")
    name, _, place = failure.partition(": ")
    assert shown.startswith(failure if shows else name)
    words = place.partition(" at ")[0]
    assert shows or not words or words not in str(effect)


@pytest.mark.parametrize(
    ("tool", "state"), [("shout", S.OUTCOME_UNKNOWN), ("book", S.OUTCOME_UNKNOWN), ("look", S.FAILED)]
)
async def test_a_stop_during_a_call_records_what_may_have_been(harness: Harness, tool: str, state: CallState) -> None:
    address = await harness.plan((tool, {"mode": "wait"}))
    environment, running = ActivityEnvironment(), harness.world.running
    call = await harness.tool_call(address, "t1.0")
    work: Any = asyncio.create_task(environment.run(ToolActivities(harness.deps).run, call))
    await until(lambda: harness.world.running > running)
    environment.cancel(ActivityCancellationDetails(cancel_requested=True))
    assert (await work).state is state
    assert (await harness.call_row(address))["state"] == state.value


@pytest.mark.parametrize("tool", ["look", "book", "shout"])
async def test_a_drain_is_no_mistake_of_the_tool(harness: Harness, tool: str) -> None:
    address, running = await harness.plan((tool, {})), harness.world.running
    activities = ToolActivities(with_tool(harness, tool, function=_replaces_its_end))
    call = await harness.tool_call(address, "t1.0")
    work = asyncio.create_task(harness.activity(activities.run, call))
    await until(lambda: harness.world.running > running)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert (await harness.call_row(address))["state"] == S.RESERVED.value


# The state in which an attempt that must not send leaves a call that an earlier one may have sent.


async def unsent(harness: Harness, address: TurnAddress, attempt: int) -> None:
    """An attempt that ends without sending, to be tried again."""
    with pytest.raises(ApplicationError) as raised:
        await harness.run_tool(address, attempt=attempt)
    assert (raised.value.type, raised.value.non_retryable) == ("tool_unavailable", False)


def unreadable(monkeypatch: Patch) -> None:
    """Claims are old when they return, so the ledger is asked again who owns the call; it does not answer, once."""
    monkeypatch.setattr(tools, "FRESH_SECONDS", 0.0)

    async def broken(tx: Connection, call: ToolCall, epoch: int) -> bool:
        monkeypatch.setattr(tool_calls, "still_owned", real)
        raise OSError("connection reset")

    real = tool_calls.still_owned
    monkeypatch.setattr(tool_calls, "still_owned", broken)


async def test_a_sent_call_stays_open_to_settle_if_a_stop_meets_it(harness: Harness, monkeypatch: Patch) -> None:
    address = await harness.plan(("book", {"mode": "wait"}))
    await kill_while_sent(harness, address)
    owned = tool_calls.still_owned

    async def stopped_first(tx: Connection, call: ToolCall, epoch: int) -> bool:
        await harness.stop(address.turn_id)
        return await owned(tx, call, epoch)

    monkeypatch.setattr(tools, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(tool_calls, "still_owned", stopped_first)
    await unsent(harness, address, 2)
    row = await harness.call_row(address)
    assert row["state"] == "reserved" and row["first_sent_at"] is not None
    await harness.finish(address)
    assert (await harness.call_row(address))["state"] == "outcome_unknown"
    assert harness.world.effects.count(("/book", effect_key(address.turn_id, "t1.0"))) == 1


@pytest.mark.parametrize("could_not_tell", [False, True], ids=["", "after an attempt that could not tell"])
@pytest.mark.parametrize(("tool", "state", "sent"), [("book", S.DONE, 2), ("brief_key", S.OUTCOME_UNKNOWN, 1)])
async def test_a_keyed_call_of_a_dead_worker_is_sent_again_unless_its_key_is_old(
    harness: Harness, monkeypatch: Patch, tool: str, state: CallState, sent: int, could_not_tell: bool
) -> None:
    address = await harness.plan((tool, {"mode": "wait"}))
    await kill_while_sent(harness, address)
    if could_not_tell:
        unreadable(monkeypatch)
        await unsent(harness, address, 2)
    await harness.write(OLDER, address.turn_id)
    assert (await harness.run_tool(address, attempt=3)).state is state
    key = effect_key(address.turn_id, "t1.0")
    assert (harness.world.requests[key], harness.world.effects.count((f"/{tool}", key))) == (sent, 1)


@pytest.mark.parametrize("loses", [False, True])
@pytest.mark.parametrize("ends", ["turn", "key"])
async def test_a_call_that_waits_for_its_retry_keeps_what_is_known(harness: Harness, loses: bool, ends: str) -> None:
    address = await harness.plan(("brief_key", {"mode": "wait,break" if loses else "break"}))
    if loses:
        await kill_while_sent(harness, address)
    await unsent(harness, address, 2)
    if ends == "turn":
        await harness.finish(address)
    else:
        await harness.write(OLDER, address.turn_id)
        assert (await harness.run_tool(address, attempt=3)).state is S.OUTCOME_UNKNOWN
    async with harness.db.transaction("local") as tx:
        effect = await effects.get_effect(tx, effect_key(address.turn_id, "t1.0"), None)
    shown, lost = effect["known"], KnownEnd.TURN_ENDED if ends == "turn" else KnownEnd.WORKER_LOST
    assert shown["code"] == ("turn_ended" if loses and ends == "turn" else "no_answer")  # type: ignore[index]
    named = [str(known_end(end)["message"]) in str(shown) for end in (KnownEnd.NO_ANSWER, lost)]
    assert named == [True, loses]
    assert str(effect["failure"]).startswith("ReadError")


@pytest.mark.parametrize("tool", ["book", "shout", "look"])
async def test_a_call_that_cannot_have_been_sent_is_replanned(harness: Harness, monkeypatch: Patch, tool: str) -> None:
    address = await harness.plan((tool, {}))
    unreadable(monkeypatch)
    await unsent(harness, address, 1)
    row = await harness.call_row(address)
    assert (row["state"], row["first_sent_at"], row["errors"]) == ("planned", None, 1)
    assert (await harness.run_tool(address, attempt=2)).state is S.DONE


async def test_a_claim_made_before_the_machine_slept_is_not_fresh(harness: Harness, monkeypatch: Patch) -> None:
    address = await harness.plan(("book", {}))
    slept, asked, real = [0.0], [0], time.clock_gettime
    reserve, owned = tool_calls.reserve, tool_calls.still_owned

    async def then_sleeps(*given: Any) -> int:
        slept[0] = 60.0
        return await reserve(*given)

    async def counted(tx: Connection, call: ToolCall, epoch: int) -> bool:
        asked[0] += 1
        return await owned(tx, call, epoch)

    # On Linux, CLOCK_BOOTTIME continues while the machine sleeps; CLOCK_MONOTONIC and time.monotonic() do not.
    awake_or_not = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    monkeypatch.setattr(time, "clock_gettime", lambda clock: real(clock) + (slept[0] if clock == awake_or_not else 0.0))
    monkeypatch.setattr(tool_calls, "reserve", then_sleeps)
    monkeypatch.setattr(tool_calls, "still_owned", counted)
    assert (await harness.run_tool(address)).state is S.DONE
    assert asked == [1]


# Postgres is lost during a `local` call: the tool has not answered, so the next attempt makes the call.


@asynccontextmanager
async def entities_locked(urls: Urls) -> AsyncIterator[None]:
    """The table into which the tool writes makes it wait."""
    owner = await asyncpg.connect(urls.owner)
    async with owner.transaction():
        await owner.execute("LOCK TABLE perdure.entities IN ACCESS EXCLUSIVE MODE")
        yield
    await owner.close()


async def cut(urls: Urls, where: str) -> None:
    admin = await asyncpg.connect(urls.admin)
    found = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND usename = 'perdure_app' AND "
    await until(lambda: admin.fetch(found + where, urls.app.rpartition("/")[2]))
    await admin.close()


async def is_left_to_the_next(harness: Harness, address: TurnAddress, attempt: asyncio.Task[ToolOutcome]) -> None:
    """The attempt failed with Postgres, nothing is settled or counted as lost; the next one does the call, once."""
    (failure,) = await gathered(attempt)
    assert isinstance(failure, ApplicationError), failure
    assert (failure.type, failure.non_retryable) == ("store_unavailable", False)
    row = await harness.call_row(address)
    assert (row["state"], row["lost_settles"], row["outcome"]) == ("reserved", 0, None)
    assert (await harness.run_tool(address, attempt=2)).state is S.DONE
    assert await harness.value(ENTITIES, address.turn_id) == 1


async def test_a_connection_that_breaks_in_a_local_call_leaves_it_to_a_retry(harness: Harness, urls: Urls) -> None:
    address = await harness.approved(("jot", {}))
    async with entities_locked(urls):
        attempt = asyncio.create_task(harness.run_tool(address))
        await cut(urls, "wait_event_type = 'Lock'")
    await is_left_to_the_next(harness, address, attempt)


async def test_a_statement_that_hangs_inside_the_tool(harness: Harness, urls: Urls) -> None:
    address = await harness.approved(("jot", {}))
    impatient = await Database.connect(urls.app, wait_seconds=2.0, keyring=KEYRING)
    activity = ToolActivities(replace(harness.deps, db=impatient)).run
    async with entities_locked(urls):
        attempt = asyncio.create_task(harness.activity(activity, await harness.tool_call(address, "t1.0")))
        await gathered(attempt)
    await impatient.close()
    await is_left_to_the_next(harness, address, attempt)


async def test_a_connection_that_breaks_between_the_tool_and_its_settle(harness: Harness, urls: Urls) -> None:
    address = await harness.approved(("jot", {"mode": "wait"}))
    attempt = await frozen_inside(harness, address)
    await cut(urls, "state = 'idle in transaction'")
    harness.world.go_on.set()
    await is_left_to_the_next(harness, address, attempt)


async def test_no_free_connection_for_the_tool(harness: Harness, monkeypatch: Patch) -> None:
    address = await harness.approved(("jot", {}))
    real = harness.db.transaction

    def busy_once(tenant_id: str, turn_id: str | None = None) -> Any:
        if turn_id is not None:  # the claim
            return real(tenant_id, turn_id)
        monkeypatch.setattr(harness.db, "transaction", real)
        raise TimeoutError  # as the pool does after its wait

    call = await harness.tool_call(address, "t1.0")
    monkeypatch.setattr(harness.db, "transaction", busy_once)
    attempt = asyncio.create_task(harness.activity(ToolActivities(harness.deps).run, call))
    await gathered(attempt)
    await is_left_to_the_next(harness, address, attempt)


async def test_a_tools_time_out_fails_it_and_our_fault_is_no_lost_settle(harness: Harness, monkeypatch: Patch) -> None:
    send = AsyncMock(side_effect=TimeoutError)  # as if the target is silent
    monkeypatch.setattr(ToolContext, "send", send)
    assert (await harness.run_tool(await harness.plan(("jot", {})))).state is S.FAILED
    send.side_effect = InvariantBroken("odd_ledger", "something of ours is broken")
    address = await harness.plan(("jot", {}))
    with pytest.raises(ApplicationError) as found:
        await harness.run_tool(address)
    assert found.value.type == "odd_ledger"
    assert (await harness.call_row(address))["lost_settles"] == 0


FLOODS = {"announced": floods(announced=True), "endless": floods(), "bomb": says(200, bomb(), "content-encoding: gzip")}


class At(httpx.AsyncBaseTransport):
    """The target of the agent `desk`, at a server of this machine."""

    def __init__(self, made: Target) -> None:
        self._made, self._inner = made, Transport(LOCAL_OUTBOUND)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.url = request.url.copy_with(host="127.0.0.1", port=self._made.port)
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


async def run(harness: Harness, address: TurnAddress, talk: Talk) -> tuple[ToolOutcome, Target]:
    with threaded(talk) as made:
        async with httpx.AsyncClient(transport=At(made)) as http:
            toolbox = Toolbox(app_agents()[1], lambda name: None, http)
            outcome = await replace(harness, deps=replace(harness.deps, toolbox=toolbox)).run_tool(address)
    return outcome, made


WRITTEN = [("book", "announced"), ("shout", "endless"), ("post", "bomb")]


@pytest.mark.parametrize(("tool", "kind"), [("look", "announced"), ("look", "bomb"), ("jot", "endless"), *WRITTEN])
async def test_an_answer_too_large_fails_a_read_and_leaves_a_write_done(harness: Harness, tool: str, kind: str) -> None:
    state = S.DONE if (tool, kind) in WRITTEN else S.FAILED
    address = await (harness.approved if tool == "post" else harness.plan)((tool, {}))
    before = psutil.Process().memory_info().rss
    outcome, made = await run(harness, address, FLOODS[kind])
    assert (psutil.Process().memory_info().rss - before) // MEBI < 150
    assert outcome.state is state and len(made.heads) == 1 and outcome.message is not None
    assert "answer_too_large" in await harness.value("SELECT content FROM messages WHERE id = $1", outcome.message.id)
    assert (await harness.call_row(address))["state"] == state.value
    assert await harness.value("SELECT count(*) FROM entities WHERE created_by_turn = $1", address.turn_id) == 0
    again, other = await run(harness, address, says())
    assert again == outcome and other.heads == [], "it is not sent again"
