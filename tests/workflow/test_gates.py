"""Gates on the real server: decisions and expiries at different times, and how the turn continues."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import JsonValue
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory

from perdure.activities import tool_checks
from perdure.contracts.activities import Verdicts
from perdure.contracts.approvals import VerdictState
from perdure.contracts.errors import UpstreamUnavailable
from perdure.contracts.ids import approval_id, effect_key
from perdure.contracts.turns import Kind, Limits, Routing, TurnAddress, TurnStatus, WakeSignal
from perdure.core.approvals.deadlines import MARGIN
from perdure.core.approvals.decisions import Decider, Decision
from perdure.local import DataParts
from perdure.sdk.threads import NoThread
from perdure.sdk.tools import Tool, ToolUnavailable
from perdure.store.approvals.reissue import reissue_outdated
from perdure.store.approvals.verdicts import read_verdicts
from perdure.store.turns.steer import add_message
from tests.conftest import Urls
from tests.doubles.message_script import Line, script
from tests.eventually import until
from tests.harness import Harness
from tests.served_turns import ALL_KINDS, DONE, PAUSED, PAY, POST, Served, apart, refused, serve
from tests.worker_process import worker_process

pytestmark = pytest.mark.filterwarnings(
    # As in test_wake_signals.py: a signal that meets a continue-as-new leaves a handler that was not begun.
    "ignore:.*run_signal:pytest.PytestUnraisableExceptionWarning"
)

A, E, R, S = Decision.APPROVE, Decision.EDIT, Decision.REJECT, Decision.RESPOND
TOO_MUCH, IN_MAY = ("too much, " * 300 + "see", "ask again in May, " * 200 + "please")
"""Told whole, however long; in a workflow they ride by their starts."""

ONE = [
    (A, {}, "done", 1, "tool", '"done":"/pay"'),
    (E, {"args": {"amount": 1}}, "done", 1, "tool", '"amount":1'),
    (R, {"comment": TOO_MUCH}, "planned", 0, "system", TOO_MUCH),
    (S, {"comment": IN_MAY}, "planned", 0, "system", IN_MAY),
]
REMIT: Any = ("remit", {"day": "2026-02-28", "amount": "1.50"})
THREE_ROUNDS = Limits(max_iterations=3)
BOOK = ("book", {"what": "a chair"})
SLOW: tuple[str, dict[str, JsonValue]] = ("pay", {"amount": 5, "mode": "wait"})
LINES = (Line("asking", [PAY]), Line("well"))
EXPIRES = timedelta(seconds=3)
"""The approval policy of the agent `hasty`."""


@pytest.mark.parametrize(
    ("decision", "given", "state", "effects", "role", "told"), ONE, ids=[row[0].value for row in ONE]
)
async def test_a_decision_reaches_the_target_and_the_model(
    served: Served, decision: Decision, given: dict[str, Any], state: str, effects: int, role: str, told: str
) -> None:
    address = await served.paused(Line("asking", [PAY]), DONE)
    await served.decide(address, decision=decision, **given)
    row = await served.until(address, TurnStatus.COMPLETED)
    assert (row["answer"], row["waiting"]) == ("well", None)
    assert await served.states(address) == {"t1.0": state}
    assert served.effects(address, "/pay") == effects
    last = served.sent_to_model(address)[-1][-1]
    assert last["role"] == role and told in last["content"]
    kept = await served.transcript(address)
    assert [said for said, _ in kept] == ["assistant", "tool", "assistant"]
    assert effects or json.loads(kept[1][1])["reason"] == told


@pytest.mark.parametrize(("agent", "call", "decision"), [
    ("desk", PAY, R), ("desk", PAY, S), ("desk", PAY, A), ("remitter", REMIT, R),
])  # fmt: skip
async def test_a_refused_call_that_is_repeated_gets_its_refusal_and_opens_no_request(
    served: Served, agent: str, call: Any, decision: Decision
) -> None:
    address = await served.paused(*[Line(f"asking {n}", [call]) for n in range(9)], agent_id=agent, limits=THREE_ROUNDS)
    await served.decide(address, decision=decision, comment=IN_MAY)
    if decision is A:  # a call that was approved needs its next approval
        await served.waits_for(address, approval_id(address.turn_id, "t2.0"))
        return await served.stop(address)
    row = await served.until(address, TurnStatus.LIMITED)
    assert row["problem"]["code"] == "iteration_limit"
    states = await served.states(address)
    assert {states.pop("t1.0")} <= {"planned", "denied"} and set(states.values()) == {"denied"}
    assert list(states) == ["t2.0", "t3.0"], "each round counts"
    opened = "SELECT count(*) FROM approvals WHERE turn_id = $1"
    assert await served.harness.value(opened, address.turn_id) == 1
    denied = await served.harness.event_data(address.turn_id, "tool.denied")
    assert len([each for each in denied if "result" in each]) >= 2
    last = json.loads(served.sent_to_model(address)[-1][-1]["content"])
    assert (last["status"], last["reason"], last["approval_id"]) == (
        "denied", IN_MAY, approval_id(address.turn_id, "t1.0")
    )  # fmt: skip
    return None


async def test_a_refused_call_is_requested_again_if_the_agent_asks_and_each_refused_round_counts(
    served: Served,
) -> None:
    lines = (Line("asking", [PAY]), Line("again", [PAY]), DONE)
    written = await served.paused(*lines)
    async with served.harness.deps.db.transaction("local") as tx:
        await add_message(tx, written, script(*lines))
    asks = await served.paused(*[Line(f"asking {n}", [PAY]) for n in range(9)], agent_id="narrow")
    for address in (written, asks):
        await served.decide(address, decision=R, comment="no")
    for call_id in ("t2.0", "t3.0"):
        await served.waits_for(asks, approval_id(asks.turn_id, call_id))
        await served.decide(asks, call_id, decision=R, comment="no")
    await served.until(asks, TurnStatus.LIMITED)  # its limit is 2, and the model can acknowledge the last refusal
    row = await served.until(written, TurnStatus.COMPLETED)
    assert row["answer"] == "well", "the reviewer refused it after the message"


@pytest.mark.parametrize("beside", [("look", {}), ("post", {**POST[1], "mode": "wait"})])
async def test_an_approved_call_of_a_changed_tool_waits_until_it_is_reissued(
    served: Served, beside: tuple[str, dict[str, Any]]
) -> None:
    """It waits for no other call of its round, which may run all the time, and its earlier attempts do not matter."""
    harness, is_slow = served.harness, beside[0] == "post"
    address = await served.paused(Line("asking", [("pay", {"amount": 5, "mode": "down,down"}), beside]), DONE)
    request, tools = approval_id(address.turn_id, "t1.0"), dict(harness.deps.toolbox._tools)
    tool = tools["desk", "pay"]
    newer = replace(tool, card=tool.card.model_copy(update={"version": "newer", "version_1": ""}))
    person = harness.people["reviewer"]

    async def is_reopened() -> bool:
        return bool((await harness.approval_row(address))["status"] == "pending")

    failed_twice = "SELECT errors = 2 FROM tool_calls WHERE turn_id = $1 AND call_id = 't1.0'"
    with pytest.MonkeyPatch.context() as patch:
        if is_slow:
            harness.world.go_on.clear()
            await served.decide(address, "t1.1")
            await until(lambda: harness.world.running)
        await served.decide(address)
        await until(lambda: harness.value(failed_twice, address.turn_id))
        patch.setattr(harness.deps.toolbox, "_tools", {**tools, ("desk", "pay"): newer})
        await harness.republished(("desk", "pay"), newer)
        try:
            await (until(is_reopened) if is_slow else served.waits_for(address, request))
            assert is_slow or (await served.row(address))["status"] == PAUSED.value
            assert served.effects(address, "/pay") == 0
            async with harness.db.transaction(person.tenant_id) as tx:
                await reissue_outdated(tx, request, Decider(person.user_id, person.roles))
            await served.decide(address)
            await until(lambda: served.effects(address, "/pay"))
            assert harness.world.running == is_slow
            harness.world.go_on.set()
            await served.until(address, TurnStatus.COMPLETED)
        finally:
            await harness.republished(("desk", "pay"), tool)
    assert served.effects(address, "/pay") == 1 and await served.states(address) == {"t1.0": "done", "t1.1": "done"}


async def test_nobody_is_asked_about_a_call_that_the_types_of_its_tool_refuse(served: Served) -> None:
    fine = ("remit", {"day": "2026-02-28", "amount": "1.50"})
    impossible = [("remit", {**fine[1], **wrong}) for wrong in ({"day": "2026-02-30"}, {"amount": "1.505"})]
    address = await served.paused(Line("asking", [*impossible, fine]), DONE, agent_id="remitter")
    assert await served.harness.value(
        "SELECT array_agg(call_id ORDER BY call_id) FROM approvals WHERE turn_id = $1", address.turn_id
    ) == ["t1.2"]
    assert await served.states(address) == {"t1.0": "failed", "t1.1": "failed", "t1.2": "planned"}
    await served.decide(address, "t1.2")
    await served.until(address, TurnStatus.COMPLETED)
    assert served.effects(address, "/remit", "t1.2") == 1 and len(await served.transcript(address)) == 5
    told = [message["content"] for message in served.sent_to_model(address)[-1] if message["role"] == "tool"]
    assert "day" in told[0] and "amount" in told[1] and "/remit" in told[2]


@pytest.mark.parametrize(("fault", "times", "left", "told"), [
    (UpstreamUnavailable("lost", "no heartbeat"), 9, None, ["no worker finished it"] * 2),
    (ToolUnavailable("slow"), 9, ["t1.0"], ["could not be checked: slow"]),
    (ToolUnavailable("slow"), 1, ["t1.0", "t1.1"], []),
    (ToolUnavailable("busy"), 9, ["t1.0", "t1.1"], []),
    (NoThread("no thread"), 5, ["t1.0", "t1.1"], []),
])  # fmt: skip
async def test_a_check_that_never_ends_is_not_repeated_for_ever(
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    fault: Exception,
    times: int,
    left: list[str] | None,
    told: list[str],
) -> None:
    bind, faults, running = Tool.bind, iter([fault] * times), Counter[str]()

    async def breaking(tool: Tool, args: Mapping[str, JsonValue]) -> dict[str, Any]:
        is_fine = args["amount"] == "1.00" or (str(fault) == "busy" and not running["now"])
        running["now"] += 1
        try:
            if not is_fine and (now := next(faults, None)):
                raise now
            return await bind(tool, args)
        finally:
            running["now"] -= 1

    monkeypatch.setattr(tool_checks, "MAX_CHECKS", 3)
    monkeypatch.setattr(tool_checks, "MAX_SLOW_CHECKS", 2)
    monkeypatch.setattr(Tool, "bind", breaking)
    calls = [("remit", {"day": "2026-02-28", "amount": amount}) for amount in ("1.00", "2.00")]
    address = await served.begin(Line("asking", calls), DONE, agent_id="remitter")
    await served.until(address)
    asked = "SELECT array_agg(call_id ORDER BY call_id) FROM approvals WHERE turn_id = $1"
    assert await served.harness.value(asked, address.turn_id) == left
    results = [text for role, text in await served.transcript(address) if role == "tool"]
    assert len(results) == len(told) and all(map(str.__contains__, results, told))


async def test_an_approved_local_call_creates_its_entity_once(served: Served) -> None:
    create: tuple[str, Mapping[str, JsonValue]] = (
        "create_entity",
        {"kind": "well", "name": "Blue  Hill 7", "attributes": {"aliases": ["BH-7"]}},
    )
    address = await served.paused(Line("asking", [create]), DONE)
    assert not await served.harness.rows("SELECT id FROM entities WHERE created_by_turn = $1", address.turn_id)
    await served.decide(address)
    await served.until(address, TurnStatus.COMPLETED)
    rows = await served.harness.rows(
        "SELECT e.id, e.xmin::text AS entity, n.xmin::text AS name, c.xmin::text AS call, n.name_key FROM entities e "
        "JOIN entity_names n ON n.entity_id = e.id "
        "JOIN tool_calls c ON c.turn_id = e.created_by_turn AND c.call_id = e.created_by_call "
        "WHERE e.created_by_turn = $1 ORDER BY n.name_key",
        address.turn_id,
    )
    assert [row["name_key"] for row in rows] == ["bh-7", "blue hill 7"]
    assert len({row["id"] for row in rows}) == 1
    assert all(row["entity"] == row["name"] == row["call"] for row in rows), "one transaction wrote all of it"
    found = ("entity_resolve", {"name": "blue hill 7"})
    again = await served.begin(Line("", [found]), DONE, conversation_id=address.conversation_id)
    await served.until(again, TurnStatus.COMPLETED)
    assert '"status":"resolved"' in served.sent_to_model(again)[-1][-1]["content"]
    memory = served.sent_to_model(again)[0][0]
    assert memory["role"] == "system" and str(rows[0]["id"]) in memory["content"], "working memory is injected"


async def test_failed_resolves_count_over_turns_until_a_reviewer_answers(served: Served) -> None:
    conversation_id = await served.harness.conversation()

    async def search_in_vain() -> TurnAddress:
        lost = ("entity_resolve", {"name": "no such well"})
        return await served.begin(Line("", [lost]), DONE, conversation_id=conversation_id)

    for _ in range(2):
        await served.until(await search_in_vain(), TurnStatus.COMPLETED)
    third = await search_in_vain()
    await served.until(third)
    counted = "SELECT value FROM working_memory WHERE conversation_id = $1 AND field = 'consecutive_failed_resolves'"
    assert await served.harness.value(counted, conversation_id) == 3
    (asked,) = await served.harness.rows("SELECT call_id FROM approvals WHERE turn_id = $1", third.turn_id)
    await served.decide(third, asked["call_id"], Decision.RESPOND, comment="the one in the north")
    await served.until(third, TurnStatus.COMPLETED)
    assert await served.harness.value(counted, conversation_id) is None
    assert "consecutive" not in str(served.sent_to_model(third)[0][0])
    await served.until(await search_in_vain(), TurnStatus.COMPLETED)


async def test_a_turn_waits_until_an_unknown_outcome_is_settled(served: Served) -> None:
    address = await served.paused(Line("asking", [("post", {"mode": "break"}), PAY, ("look", {})]), DONE)
    await served.decide(address, "t1.0")
    effect = effect_key(address.turn_id, "t1.0")
    await served.waits_for(address, approval_id(address.turn_id, "t1.1"), effect)
    await served.decide(address, "t1.1")
    before = await served.waits_for(address, effect)
    assert await served.states(address) == {"t1.0": "outcome_unknown", "t1.1": "done", "t1.2": "done"}
    await served.wake(address, WakeSignal(kind="request"))
    await served.waits_again(address, before)
    await served.settle(address, "t1.0")
    await served.until(address, TurnStatus.COMPLETED)
    assert await served.states(address) == {"t1.0": "done", "t1.1": "done", "t1.2": "done"}
    assert [served.effects(address, path, call) for path, call in (("/post", "t1.0"), ("/pay", "t1.1"))] == [1, 1]
    sent = served.sent_to_model(address)[-1]
    assert '"settled_by":"reviewer"' in sent[-3]["content"] and '"status":"happened"' in sent[-3]["content"]
    approvals = await served.harness.rows("SELECT status FROM approvals WHERE turn_id = $1", address.turn_id)
    assert {row["status"] for row in approvals} == {"done"}


async def sent_calls(served: Served, address: TurnAddress) -> Counter[str]:
    """The number of times that each call was sent to a tools worker, over all runs of the turn."""
    found: Counter[str] = Counter()
    for history in await served.runs(address):
        for event in history.events:
            scheduled = event.activity_task_scheduled_event_attributes
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED and (
                scheduled.activity_type.name == "tools.run"
            ):
                found[json.loads(scheduled.input.payloads[0].data)["ask"]["call_id"]] += 1
    return found


async def test_a_partly_run_round_waits_visibly_for_the_rest_with_nothing_dangling(served: Served) -> None:
    address = await served.paused(Line("asking", [PAY, POST]), DONE)
    await served.decide(address)
    run_id = await served.waits_for(address, approval_id(address.turn_id, "t1.1"))
    row = await served.row(address)
    assert row["status"] == PAUSED.value and row["waiting"]["expires_at"] is not None
    assert await served.states(address) == {"t1.0": "done", "t1.1": "planned"}
    for _ in range(2):
        await served.wake(address, WakeSignal(kind="request"))
        run_id = await served.waits_again(address, run_id)
    assert await sent_calls(served, address) == {"t1.0": 1}, "a look that finds nothing asks for nothing"
    await served.decide(address, "t1.1", Decision.REJECT, comment="not that")
    await served.until(address, TurnStatus.COMPLETED)
    assert await sent_calls(served, address) == {"t1.0": 1, "t1.1": 1}
    assert await served.states(address) == {"t1.0": "done", "t1.1": "denied"}
    assert "not that" in served.sent_to_model(address)[-1][-1]["content"]
    assert served.effects(address, "/post", "t1.1") == 0


async def test_one_approved_and_one_that_expires_end_the_round_together(served: Served) -> None:
    address = await served.paused(Line("asking", [PAY, POST]), DONE, agent_id="hasty")
    await served.decide(address)
    await served.until(address, TurnStatus.COMPLETED)
    assert await served.states(address) == {"t1.0": "done", "t1.1": "denied"}
    assert await sent_calls(served, address) == {"t1.0": 1, "t1.1": 1}
    assert (await served.harness.approval_row(address, "t1.1"))["status"] == "expired"


async def test_a_killed_worker_loses_no_call(harness: Harness, temporal: Client, urls: Urls, parts: DataParts) -> None:
    served = apart(harness, temporal, Routing.spread())
    at = served.harness
    at.world.go_on.clear()
    async with AsyncExitStack() as stack:
        await serve(stack, at, tuple(kind for kind in ALL_KINDS if kind is not Kind.TURNS))
        async with worker_process(Kind.TURNS, urls, parts, at.routing.turns) as process:
            address = await served.paused(Line("asking", [SLOW, POST, PAY]), DONE)
            await served.decide(address)
            await until(lambda: served.effects(address, "/pay") == 1)
            await served.decide(address, "t1.1")
            await until(lambda: served.effects(address, "/post", "t1.1") == 1)
            process.kill()
        await served.decide(address, "t1.2")
        await serve(stack, at, (Kind.TURNS,))
        third_is_done = "SELECT state = 'done' FROM tool_calls WHERE turn_id = $1 AND call_id = 't1.2'"
        await until(lambda: at.value(third_is_done, address.turn_id))
        assert (await served.states(address))["t1.0"] == "reserved", "the first is still under way"
        at.world.go_on.set()
        await served.until(address, TurnStatus.COMPLETED)
    assert await sent_calls(served, address) == {"t1.0": 1, "t1.1": 1, "t1.2": 1}
    effects = [("/pay", "t1.0"), ("/post", "t1.1"), ("/pay", "t1.2")]
    assert [served.effects(address, path, call_id) for path, call_id in effects] == [1, 1, 1]


async def goes_off_at(served: Served, address: TurnAddress, run_id: str | None = None) -> datetime:
    """The moment that the timer of a wait is set to."""

    async def timers() -> list[datetime]:
        events = (await served.history(address, run_id)).events
        waits = [one.timer_started_event_attributes for one in events if one.HasField("timer_started_event_attributes")]
        began = [each for each in events if each.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED]
        return [began[0].event_time.ToDatetime(UTC) + each.start_to_fire_timeout.ToTimedelta() for each in waits]

    return (await until(timers))[0]


async def test_a_paused_turn_waits_until_its_earliest_check(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    began, hour, minute = datetime.now(UTC), timedelta(hours=1), timedelta(minutes=1)
    looks = {"t1.0": began + 3 * hour, "t1.1": began + 6 * hour}
    address = await served.paused(Line("asking", [PAY, POST]), DONE)
    run_id = await served.waits(address)
    assert await goes_off_at(served, address, run_id) > began + timedelta(days=1)

    async def verdicts_with_times(*given: Any) -> Verdicts:  # as an escalation or a hold does
        found = (await read_verdicts(*given)).verdicts
        pending = {VerdictState.PENDING: looks}
        times = [pending.get(each.state, {}).get(each.call_id, each.look_at) for each in found]
        changed = [each.model_copy(update={"look_at": time}) for each, time in zip(found, times, strict=True)]
        return Verdicts(verdicts=tuple(changed))

    monkeypatch.setattr("perdure.activities.approvals.read_verdicts", verdicts_with_times)
    await served.wake(address, WakeSignal(kind="request"))
    run_id = await served.waits_again(address, run_id)
    assert abs(await goes_off_at(served, address, run_id) - looks["t1.0"]) < minute
    await served.decide(address, "t1.0")
    run_id = await served.waits_again(address, run_id)
    assert (await served.states(address))["t1.0"] == "done"
    assert await goes_off_at(served, address, run_id) > looks["t1.1"] - minute, "the other's look is left"
    await served.decide(address, "t1.1")
    await served.until(address, TurnStatus.COMPLETED)


def woken_by(history: WorkflowHistory) -> list[str]:
    """The events of a wait: its timer, its signals."""
    types = (EventType.EVENT_TYPE_TIMER_FIRED, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED)
    found = [event.event_type for event in history.events if event.event_type in types]
    return [EventType.Name(each).removeprefix("EVENT_TYPE_") for each in found]


async def assert_expired(served: Served, address: TurnAddress) -> None:
    """Checks that the turn continued without the call, and not before the deadline."""
    row = await served.until(address, TurnStatus.COMPLETED)
    assert row["answer"] == "well"
    approval = await served.harness.approval_row(address)
    assert approval["status"] == "expired" and row["ended_at"] > approval["expires_at"]
    assert served.effects(address, "/pay") == 0
    assert (await served.harness.kinds(address.turn_id)).count("tool.denied") == 1
    assert [message["role"] for message in served.sent_to_model(address)[-1]] == ["user", "system"]


async def test_a_signal_before_the_deadline_does_not_delay_it(served: Served) -> None:
    address = await served.paused(*LINES, agent_id="hasty")
    run_id = await served.waits(address)
    expires_at = (await served.harness.approval_row(address))["expires_at"]
    await served.wake(address, WakeSignal(kind="request"))
    run_id = await served.waits_again(address, run_id)
    assert (await served.harness.approval_row(address))["expires_at"] == expires_at
    await assert_expired(served, address)
    assert abs(await goes_off_at(served, address, run_id) - expires_at - MARGIN) < timedelta(seconds=0.1)
    woken = [woken_by(run) for run in (await served.runs(address))[1::2]]
    assert woken == [["WORKFLOW_EXECUTION_SIGNALED"], ["TIMER_FIRED"]]


async def test_a_deadline_passed_while_no_worker_runs_is_kept_when_one_does(harness: Harness, temporal: Client) -> None:
    served = apart(harness, temporal)
    async with AsyncExitStack() as stack:
        await serve(stack, served.harness, ALL_KINDS)
        address = await served.paused(*LINES, agent_id="hasty")
    await asyncio.sleep((EXPIRES + MARGIN).total_seconds() + 0.5)
    assert (await served.row(address))["status"] == PAUSED.value
    with refused("approval_expired"):
        await served.decide(address)
    async with AsyncExitStack() as stack:
        await serve(stack, served.harness, ALL_KINDS)
        await assert_expired(served, address)
