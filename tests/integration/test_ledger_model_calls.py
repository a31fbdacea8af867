"""`model.complete` on the real ledger: paid once for all, brief claims, checkpoints; `memory.load` run twice."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, example, given, settings
from pydantic import JsonValue
from temporalio.exceptions import ApplicationError

from perdure.activities import model_request
from perdure.activities.approvals import ApprovalActivities
from perdure.activities.memory import MemoryActivities
from perdure.activities.model import ModelActivities
from perdure.activities.model_request import Prompt, prompt_of
from perdure.activities.toolbox.registry import Toolbox
from perdure.activities.tools import ToolActivities
from perdure.contracts.activities import LoadRequest, OpenRequest, VerdictsRequest
from perdure.contracts.agents import PublishedAgent
from perdure.contracts.approvals import GatedCall, RequestKind, VerdictState
from perdure.contracts.calls import ModelCall, ModelReply
from perdure.contracts.events import PendingEvent
from perdure.contracts.turns import Limits, OnSpent, TurnAddress, TurnStatus
from perdure.core.budgets import USUAL_ANSWER_TOKENS
from perdure.core.calls.retries import PROVIDER_ERRORS
from perdure.core.turns import Caps
from perdure.store.approvals.requests import open_requests
from perdure.store.calls.model_calls import ModelClaim
from perdure.store.database import Connection
from perdure.store.memory import working_memory
from perdure.store.turns import views
from tests.doubles.fake_turn import NOW
from tests.doubles.message_script import Line
from tests.doubles.target import app_agents
from tests.eventually import until
from tests.harness import Harness, gathered
from tests.integration.conftest import in_transaction
from tests.json_values import JSON
from tests.scale import sized

PAID = "SELECT ARRAY[input_tokens, output_tokens, cost_microusd] FROM turns WHERE id = $1"


async def ask(harness: Harness, call: ModelCall, attempt: int = 1, run_id: str = "run-1") -> ModelReply:
    return await harness.activity(ModelActivities(harness.deps).complete, call, attempt=attempt, run_id=run_id)


def requests(harness: Harness, call: ModelCall) -> int:
    return harness.model.requests[f"{call.address.turn_id}.{call.call_id}"]


@asynccontextmanager
async def under_way(harness: Harness, call: ModelCall, attempt: int, times: int) -> AsyncIterator[None]:
    """The provider is asked by that attempt, whose worker dies at the end; it has been asked so often."""
    dying = asyncio.create_task(ask(harness, call, attempt))
    await until(lambda: requests(harness, call) == times)
    yield
    dying.cancel()
    await gathered(dying)


async def code_of(harness: Harness, call: ModelCall, attempt: int = 1) -> str | None:
    reply = await ask(harness, call, attempt)
    return reply.problem.code if reply.problem else None


async def begun(harness: Harness, *lines: Line) -> ModelCall:
    address, _ = await harness.start(*lines)
    return await harness.model_call(address)


async def test_a_settled_call_answers_every_later_attempt_and_is_never_paid_again(harness: Harness) -> None:
    call = await begun(harness, Line("hello there", tokens=30))
    await harness.write("UPDATE turns SET created_at = created_at - interval '9 s' WHERE id = $1", call.address.turn_id)
    first = await ask(harness, call)
    assert first.message is not None and first.problem is None
    again = await gathered(*(ask(harness, call, attempt, run) for attempt in range(1, 5) for run in ("run-1", "run-2")))
    assert again == [first] * 8
    assert requests(harness, call) == 1
    assert await harness.value(PAID, call.address.turn_id) == [29, 1, 10]
    kinds = ["ready", "generation.start", "ttft", "token.usage", "generation.complete"]
    assert await harness.kinds(call.address.turn_id) == kinds
    shown = await in_transaction(harness.db, views.get_turn, call.address.turn_id, None)
    assert 9 <= cast(float, shown["ttft_seconds"]) < 60, "from the turn's beginning, as its reader waited"


async def test_many_attempts_at_once_settle_once_and_the_others_step_aside(harness: Harness) -> None:
    call = await begun(harness, Line("hello", [("look", {}), ("pay", {})], seconds=0.05))
    answers = await asyncio.gather(*(ask(harness, call, attempt) for attempt in range(1, 9)))
    assert len({answer.message.id for answer in answers if answer.problem is None and answer.message}) == 1
    assert {answer.problem.code for answer in answers if answer.problem} <= {"stale_attempt"}
    assert requests(harness, call) <= 8
    said = await harness.rows("SELECT id FROM messages WHERE turn_id = $1 AND role = 'assistant'", call.address.turn_id)
    assert len(said) == 1
    planned = await harness.rows("SELECT call_id FROM tool_calls WHERE turn_id = $1 ORDER BY 1", call.address.turn_id)
    assert [row["call_id"] for row in planned] == ["t1.0", "t1.1"]
    usage = await harness.value("SELECT output_tokens FROM turns WHERE id = $1", call.address.turn_id)
    assert usage == requests(harness, call), "one is heard, and each that was asked for is paid once"


async def test_an_attempt_that_lost_its_epoch_may_not_settle(harness: Harness) -> None:
    call = await begun(harness, Line("slow", waits="each"))
    turn_id = call.address.turn_id
    with harness.model.held("each") as gate:
        zombie = asyncio.create_task(ask(harness, call, 1))
        await until(lambda: requests(harness, call) == 1)
        owner = asyncio.create_task(ask(harness, call, 2))
        await until(lambda: requests(harness, call) == 2)
        assumed = (await harness.value(PAID, turn_id))[1]
        assert assumed == USUAL_ANSWER_TOKENS, "what it may have said counts until it comes back"
        gate.release()
        lost = await zombie
        assert lost.problem is not None and lost.problem.code == "stale_attempt"
        assert await harness.value("SELECT count(*) FROM messages WHERE turn_id = $1", turn_id) == 1
        assert await harness.value(PAID, turn_id) == [9, 1, 10], "it was paid, though no caller receives it"
    reply = await owner
    assert reply.problem is None and reply.turn_used is not None and reply.turn_used.tokens == 20
    assert await harness.value(PAID, turn_id) == [18, 2, 20]
    assert await code_of(harness, call) is None, "settled: answers again"


async def test_an_older_attempt_cannot_begin_and_a_cancelled_one_records_its_usage(harness: Harness) -> None:
    call = await begun(harness, Line("half an answer", seconds=30))
    async with under_way(harness, call, 2, 1):
        assert await code_of(harness, call, 1) == "stale_attempt" and requests(harness, call) == 1
        await until(lambda: harness.model.said[f"{call.address.turn_id}.m1"] > 0)
    paid = await harness.value(PAID, call.address.turn_id)
    assert paid[0] > 0 and paid[1] == 4, "about four characters a token"


async def test_a_call_starts_only_within_the_turns_remaining_budget(harness: Harness) -> None:
    call = await begun(harness, Line("never said"))
    used = "UPDATE turns SET input_tokens = $2 WHERE id = $1"
    await harness.write(used, call.address.turn_id, 100_000)
    assert await code_of(harness, call) == "token_budget_spent"
    assert requests(harness, call) == 0
    await harness.write(used, call.address.turn_id, 99_999)
    assert await code_of(harness, call) is None


@pytest.mark.parametrize(("how", "code"), [("stop", "stopped"), ("finish", "turn_ended")])
async def test_an_ended_turn_claims_nothing_but_reads_a_settled_reply(harness: Harness, how: str, code: str) -> None:
    call, settled = await begun(harness, Line("hello")), await begun(harness, Line("hello"))
    reply = await ask(harness, settled)
    for each in (call, settled):
        await end(harness, each.address, how)
    assert await code_of(harness, call) == code and requests(harness, call) == 0
    assert await ask(harness, settled, 2) == reply


async def end(harness: Harness, address: TurnAddress, how: str) -> None:
    await (harness.stop(address.turn_id) if how == "stop" else harness.finish(address, TurnStatus.COMPLETED))


@pytest.mark.parametrize(
    ("fails", "attempts", "code"), [(2, 3, None), (99, PROVIDER_ERRORS, "model_unavailable")], ids=["few", "too many"]
)
async def test_provider_errors_retry_then_end(harness: Harness, fails: int, attempts: int, code: str | None) -> None:
    call = await begun(harness, Line("half an", fails=fails))
    for attempt in range(1, attempts):
        with pytest.raises(ApplicationError) as raised:
            await ask(harness, call, attempt)
        assert (raised.value.type, raised.value.non_retryable) == ("model_unavailable", False)
        assert raised.value.next_retry_delay is not None
    reply = await ask(harness, call, attempts)
    assert (reply.problem.code if reply.problem else None, reply.partial) == (code, code is not None)
    assert reply.message is not None and reply.message.text == "half an"
    assert await ask(harness, call, attempts + 1) == reply
    assert requests(harness, call) == attempts
    assert (await harness.kinds(call.address.turn_id)).count("transient_error") == attempts - 1


async def test_a_dead_worker_does_not_use_up_a_providers_retries(harness: Harness) -> None:
    call = await begun(harness, Line("hello", seconds=30))
    for attempt in range(1, 7):
        async with under_way(harness, call, attempt, attempt):
            pass
    (row,) = await harness.rows("SELECT errors, epoch FROM model_calls WHERE turn_id = $1", call.address.turn_id)
    assert tuple(row) == (0, 6)


PENDING = tuple(PendingEvent(kind="node_start", at=NOW, number=n, data={"node": f"n{n}"}) for n in (1, 2))


async def test_events_that_wait_are_written_once_however_often_the_call_is_claimed(harness: Harness) -> None:
    call = await begun(harness, Line("hello", fails=1))
    call = call.model_copy(update={"events": PENDING})
    with pytest.raises(ApplicationError):
        await ask(harness, call, 1)
    await ask(harness, call, 2)
    await ask(harness, call, 3, "run-2")
    assert await nodes(harness, call.address) == ["n1", "n2"]


@pytest.mark.parametrize("stopped", [False, True])
async def test_loading_again_writes_waiting_events_once_also_if_stopped(harness: Harness, stopped: bool) -> None:
    address, _ = await harness.start(Line("hello"))
    if stopped:
        await end(harness, address, "stop")
    given = LoadRequest(address=address, agent_id="desk", agent_version=await harness.version(), events=PENDING)
    first = await harness.activity(MemoryActivities(harness.deps).load, given)
    assert first == await harness.activity(MemoryActivities(harness.deps).load, given, attempt=2)
    assert (first.problem.code if first.problem else None) == ("stopped" if stopped else None)
    assert await nodes(harness, address) == ["n1", "n2"]


async def nodes(harness: Harness, address: TurnAddress) -> list[str]:
    return [data["node"] for data in await harness.event_data(address.turn_id, "node_start")]


async def test_waiting_events_are_written_whatever_the_outcome_of_their_tool_call(harness: Harness) -> None:
    for tool, args in (("nobody", {}), ("look", {}), ("pay", {}), ("shout", {"mode": "break"})):
        address = await harness.plan((tool, args))
        call = (await harness.tool_call(address, "t1.0")).model_copy(update={"events": PENDING})
        for attempt in (1, 2):
            await harness.activity(ToolActivities(harness.deps).run, call, attempt=attempt)
        assert await nodes(harness, address) == ["n1", "n2"], tool


@pytest.mark.parametrize("has_ended", [True, False])
async def test_waiting_events_are_written_in_an_open_turn_never_behind_done(harness: Harness, has_ended: bool) -> None:
    """The attempts that bring them come late: what they ask for is settled."""
    for late in ("model", "tool", "verdicts"):
        address = await harness.plan(("look", {}))
        await harness.run_tool(address)
        if has_ended:
            await end(harness, address, "finish")
        before = await harness.kinds(address.turn_id)
        if late == "model":
            model_call = (await harness.model_call(address)).model_copy(update={"events": PENDING})
            assert (await ask(harness, model_call, 2)).message is not None
        elif late == "tool":
            call = (await harness.tool_call(address, "t1.0")).model_copy(update={"events": PENDING})
            assert (await harness.activity(ToolActivities(harness.deps).run, call, attempt=2)).message is not None
        else:
            verdicts = VerdictsRequest(address=address, requests=(), events=PENDING)
            await harness.activity(ApprovalActivities(harness.deps).read, verdicts)
        after = await harness.kinds(address.turn_id)
        assert after == (before if has_ended else [*before, "node_start", "node_start"]), late
        assert (after[-1] == "done") is has_ended


async def test_imports_and_prompts_are_made_before_the_locks(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    address, _ = await harness.start(Line("a"))
    call, free = await harness.model_call(address), list[str]()

    async def imported(agent: PublishedAgent) -> None:
        free.append(str(await harness.value("SELECT id FROM turns WHERE id = $1 FOR UPDATE NOWAIT", address.turn_id)))

    async def prompt_with_lock_check(
        tx: Connection, call: ModelCall, agent: PublishedAgent, claimed: ModelClaim, past_tokens: int | None
    ) -> Prompt:
        prompt = await prompt_of(tx, call, agent, claimed, past_tokens)
        lock = "SELECT id FROM conversations WHERE id = $1 FOR NO KEY UPDATE NOWAIT"
        free.append(str(await harness.value(lock, call.address.conversation_id)))
        return prompt

    monkeypatch.setattr(harness.deps.models, "ensure_imported", imported)
    monkeypatch.setattr(model_request, "prompt_of", prompt_with_lock_check)
    harness.deps.agent_cache._agents.clear()
    reply = await harness.activity(ModelActivities(harness.deps).complete, call)
    assert reply.problem is None and free == [address.turn_id, address.conversation_id]
    kinds = await harness.kinds(address.turn_id)
    assert kinds.index("generation.start") < kinds.index("generation.complete")


BOOK = ("desk", "book")
MANY = Caps(turns_a_user=100_000)
DEEP: JsonValue = json.loads("[" * 60 + "1e16" + "]" * 60)


@pytest.fixture(scope="module")
def booking_desk(harness: Harness) -> tuple[Harness, list[JsonValue]]:
    """A desk whose bookings answer with the last of these values."""
    values = list[JsonValue]()

    async def answers(*_: Any, **__: Any) -> Any:
        return {"net": values[-1]}

    tools = [
        (agent_id, replace(tool, function=answers) if (agent_id, tool.card.name) == BOOK else tool)
        for agent_id, tool in app_agents()[1]
    ]
    toolbox = Toolbox(tools, lambda name: None, harness.deps.toolbox.http)
    return replace(harness, deps=replace(harness.deps, toolbox=toolbox)), values


@pytest.mark.sized
@settings(deadline=None, max_examples=sized(30, 4), suppress_health_check=[HealthCheck.too_slow])
@given(JSON)
@example([-0.0, 1e16, 1e22, {"net": 1.0}, 0.1, 1e-9, 5e-324, 1.7976931348623157e308])
@example(10**400)
@example(DEEP)
async def test_an_approval_is_valid_for_any_value(
    booking_desk: tuple[Harness, list[JsonValue]], value: JsonValue
) -> None:
    harness, values = booking_desk
    values.append(value)
    address = await harness.plan(("book", {"what": "x"}), caps=MANY)
    await harness.run_tool(address)
    seen = GatedCall(call_id="c1.0", tool="book", rule="test", kind=RequestKind.CHECKPOINT, checkpoint="before_sending")
    ask = OpenRequest(address=address, agent_id="desk", agent_version=await harness.version(), gated=(seen,))
    opened = await harness.activity(ApprovalActivities(harness.deps).open, ask)
    await harness.decide(opened.requests[0].request_id)
    look = VerdictsRequest(address=address, requests=opened.requests)
    found = await harness.activity(ApprovalActivities(harness.deps).read, look)
    assert [verdict.state for verdict in found.verdicts] == [VerdictState.APPROVED]


BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


async def test_a_load_that_waited_for_the_turn_sees_what_was_written_meanwhile(harness: Harness) -> None:
    address = await harness.plan(("pay", {"amount": 5}))
    version = await harness.version()
    gated = (GatedCall(call_id="t1.0", tool="pay", rule="test"),)
    asked = OpenRequest(address=address, agent_id="desk", agent_version=version, gated=gated)
    given = LoadRequest(address=address, agent_id="desk", agent_version=version)
    async with harness.db.transaction("local") as tx:
        opened = await open_requests(tx, asked, await harness.deps.agent_cache.read_pinned(tx, "desk", version))
        await working_memory.merge(tx, "local", address.conversation_id, {"recent_entity_context": ["e1"]})
        loading = asyncio.create_task(harness.activity(MemoryActivities(harness.deps).load, given, run_id="run-2"))
        await until(lambda: harness.value(BLOCKED))
        assert not loading.done(), "it waits for the turn's row"
    loaded = await loading
    assert opened is not None
    assert [request.request_id for request in loaded.pending] == [request.request_id for request in opened.requests]
    assert loaded.pending_round is not None and loaded.pending_round.calls[0].call_id == "t1.0"
    assert loaded.working == {"recent_entity_context": ["e1"]}


async def test_a_limit_asked_about_before_the_first_call_is_past_once_the_model_was_asked(harness: Harness) -> None:
    little = Limits(max_cost_microusd=1, max_tokens=10**6, max_iterations=10, on_spent=OnSpent.ASK)
    address = await harness.plan(("book", {"what": "x"}), limits=little)
    version = await harness.version()
    asked = GatedCall(call_id="l0", tool="", rule="test", kind=RequestKind.LIMIT)
    ask = OpenRequest(address=address, agent_id="desk", agent_version=version, gated=(asked,))
    opened = await harness.activity(ApprovalActivities(harness.deps).open, ask)
    assert [request.call_id for request in opened.requests] == ["l0"]
    given = LoadRequest(address=address, agent_id="desk", agent_version=version)
    loaded = await harness.activity(MemoryActivities(harness.deps).load, given, run_id="run-2")
    assert (loaded.problem, loaded.pending, loaded.pending_round) == (None, (), None)
