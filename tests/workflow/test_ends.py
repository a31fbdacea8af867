"""The ends of turns on the real server: at a limit or a daily budget, by a stop or a cancel, after failures of a
provider or the death of a worker."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from pydantic import JsonValue
from temporalio.client import Client

from perdure.contracts.agents import DayLimits
from perdure.contracts.ids import approval_id
from perdure.contracts.turns import ENDED, Kind, Limits, OnSpent, Routing, TurnAddress, TurnStatus
from perdure.core.approvals.decisions import Decider, Decision
from perdure.core.budgets import TENANT
from perdure.core.turns import OnBusy
from perdure.local import DataParts
from perdure.store.approvals.decisions import LimitRaise, raise_limits
from perdure.store.budgets import set_day_limits
from tests.conftest import Urls
from tests.doubles.broken_inside import Breaks, Brief, broken_inside
from tests.doubles.message_script import HOLDS_TOKENS, Line
from tests.eventually import until
from tests.harness import Harness
from tests.replay.recording import run_of
from tests.replay.stopping import CONFIRM, silent
from tests.served_turns import ALL_KINDS, DONE, PAY, Served, apart, refused, serve
from tests.worker_process import wait_for_word, worker_process
from tests.workflow.test_cold_resumes import start_cold

LOOK: tuple[str, dict[str, JsonValue]] = ("look", {})
ASKS = Limits(max_tokens=10, on_spent=OnSpent.ASK)
LOOKS = Line("let me look", [("look", {"what": "a"})])
RECOVERY_SECONDS = 8.0


@pytest.mark.parametrize(("limits", "code", "calls"), [
    (Limits(max_tokens=11), "token_budget_spent", 2),
    (Limits(max_cost_microusd=20), "cost_budget_spent", 2),
    (Limits(max_iterations=3), "iteration_limit", 3),
])  # fmt: skip
async def test_a_limit_ends_a_turn_not_the_conversation(served: Served, limits: Limits, code: str, calls: int) -> None:
    address, row = await served.run_to_end(*(Line(f"round {n}", [LOOK]) for n in range(5)), limits=limits)
    assert (row["status"], row["problem"]["code"]) == ("limited", code)
    assert len(served.sent_to_model(address)) == calls
    again, row = await served.run_to_end(Line("still here"), conversation_id=address.conversation_id)
    assert (row["status"], row["answer"]) == ("completed", "still here")
    for message in served.sent_to_model(again)[0]:
        asked = {call["id"] for call in message.get("tool_calls", [])}
        assert asked <= {other.get("tool_call_id") for other in served.sent_to_model(again)[0]}


async def test_an_agents_own_limits_and_window_apply(served: Served) -> None:
    lines = (Line(f"round {n}", [LOOK], tokens=2) for n in range(3))
    address, row = await served.run_to_end(*lines, agent_id="narrow", limits=Limits(max_iterations=99))
    assert (row["status"], row["problem"]["code"]) == ("limited", "iteration_limit")
    roles = [message["role"] for message in served.sent_to_model(address)[-1]]
    assert roles == ["user", "assistant", "tool"], "two messages of the past, a round whole, and the first user's"


@pytest.mark.parametrize("what", ["model", "tool"])
async def test_a_stop_between_two_attempts_ends_the_turn_without_another(served: Served, what: str) -> None:
    """The next try would come after a minute."""
    fails, later = Line("one two", fails=99, again_seconds=60), Line("", [("look", {"mode": "later"})])
    address = await served.begin(fails if what == "model" else later, DONE)
    await served.fails_once(address)
    await served.stop(address)
    assert (await served.until(address, TurnStatus.STOPPED))["problem"] is None
    assert (await served.harness.kinds(address.turn_id))[-2:] == ["stopped", "done"]
    assert served.harness.model.requests[f"{address.turn_id}.m1"] == 1
    assert served.harness.world.requests[f"{address.turn_id}/t1.0"] == (1 if what == "tool" else 0)
    errors = await served.harness.event_data(address.turn_id, "tool.error")
    assert [error["code"] for error in errors] == (["not_run"] if what == "tool" else [])
    said = await served.harness.rows(
        "SELECT m.content, m.partial, m.in_transcript, t.answer, "
        "(SELECT data->'truncated' FROM events WHERE turn_id = t.id AND kind = 'done') AS truncated "
        "FROM turns t JOIN messages m ON m.turn_id = t.id WHERE t.id = $1 AND m.role = 'assistant' AND m.content <> ''",
        address.turn_id,
    )
    kept = {"content": "one two", "partial": True, "in_transcript": True, "answer": "one two", "truncated": True}
    assert [dict(each) for each in said] == ([kept] if what == "model" else [])


@pytest.mark.parametrize("way", Breaks)
@pytest.mark.parametrize("brief", [Brief.LOAD, Brief.READ, Brief.FINISH])
async def test_a_failed_local_activity_runs_again_as_a_normal_one(served: Served, way: Breaks, brief: Brief) -> None:
    with broken_inside(way, brief) as broken:
        address = await served.paused(Line("", [PAY]), DONE)
        await served.decide(address)
        row = await served.until(address, TurnStatus.COMPLETED)
        assert await served.handle(address).result() == "completed"
        assert broken == [address.turn_id]
    assert (row["answer"], row["problem"], served.effects(address, "/pay")) == ("well", None, 1)
    assert (await served.harness.kinds(address.turn_id)).count("done") == 1
    runs = [run_of(history) for history in await served.runs(address)]
    assert [name for run in runs for name, _ in run.scheduled].count(brief) == 1
    assert [name for run in runs for name in run.called].count(brief) == 2


async def cancelled(served: Served, address: TurnAddress) -> None:
    """Cancel the turn's workflow; the record is not asked whether a user wanted it."""
    await served.handle(address).cancel()
    await is_stopped(served, address)
    assert await ends(served, address) == [("turn.cancelled", False)]
    assert CONFIRM not in [name for history in await served.runs(address) for name in run_of(history).called]


async def stopped(served: Served, address: TurnAddress) -> None:
    await asyncio.gather(*(served.stop(address) for _ in range(5)))
    await is_stopped(served, address)
    await served.stop(address)
    assert await ends(served, address) == [("turn.stop_requested", True)]


async def is_stopped(served: Served, address: TurnAddress) -> None:
    """The turn ends as stopped, once and without a problem, and so does its last run."""
    row = await served.until(address, TurnStatus.STOPPED, TurnStatus.FAILED)
    assert (row["status"], row["problem"]) == ("stopped", None)
    assert await served.handle(address).result() == "stopped"
    kinds = await served.harness.kinds(address.turn_id)
    assert kinds[-2:] == ["stopped", "done"] and kinds.count("done") == 1


async def ends(served: Served, address: TurnAddress) -> list[tuple[str, bool]]:
    """The audit rows of the turn's end, with whether they name a user."""
    rows = await served.harness.rows(
        "SELECT kind, actor FROM audit WHERE turn_id = $1 AND kind LIKE 'turn.%' ORDER BY id", address.turn_id
    )
    return [(row["kind"], row["actor"] is not None) for row in rows]


End = Callable[[Served, TurnAddress], Awaitable[None]]
either = pytest.mark.parametrize("end", [cancelled, stopped])


@either
async def test_stopping_a_paused_turn_cancels_its_requests_and_admits_the_next(served: Served, end: End) -> None:
    address = await served.paused(Line("asking", [PAY]), DONE)
    waiting = await served.begin(Line("my turn"), conversation_id=address.conversation_id, on_busy=OnBusy.QUEUE)
    await end(served, address)
    assert await served.harness.value("SELECT status FROM approvals WHERE turn_id = $1", address.turn_id) == "cancelled"
    assert (await served.until(waiting, TurnStatus.COMPLETED))["answer"] == "my turn"
    sent = served.sent_to_model(waiting)[0]
    assert [message["role"] for message in sent][-4:] == ["user", "assistant", "tool", "user"]
    assert "not_run" in str(sent[-2]), "the next turn's model is told what became of it"


@either
async def test_a_turn_stopped_while_the_model_streams_keeps_its_text(served: Served, end: End) -> None:
    address = await served.begin(Line("thinking", seconds=60))
    await until(lambda: served.harness.model.requests[f"{address.turn_id}.m1"] == 1)
    await end(served, address)
    assert [text for _, text in await served.transcript(address)] == ["thinking"]


@either
async def test_a_turn_stopped_while_calls_run_leaves_their_outcome_to_a_person(served: Served, end: End) -> None:
    served.harness.world.go_on.clear()
    address = await served.begin(Line("", [("shout", {"mode": "wait"}), ("look", {"mode": "wait"})]), DONE)
    await until(lambda: served.effects(address, "/shout") == 1)
    await end(served, address)
    assert (await served.states(address))["t1.0"] == "outcome_unknown"
    assert len(served.sent_to_model(address)) == 1
    served.harness.world.go_on.set()


async def test_a_stopped_and_cancelled_turn_ends_as_stopped_by_its_user(served: Served) -> None:
    address = await silent(served)
    note = await served.harness.stop(address.turn_id)
    assert note is not None
    await asyncio.gather(served.harness.deps.notifier.deliver_soon(note), served.handle(address).cancel())
    await is_stopped(served, address)
    assert await ends(served, address) == [("turn.stop_requested", True)]


@pytest.mark.parametrize(
    ("end", "late"),
    [(cancelled, each) for each in (Kind.TURNS, Kind.MEMORY, Kind.APPROVALS)]
    + [(stopped, each) for each in (Kind.MEMORY, Kind.APPROVALS)],
)
async def test_cancel_and_stop_end_any_waiting_turn(harness: Harness, temporal: Client, end: End, late: Kind) -> None:
    """The work that the end meets waits for a worker, so that it surely meets it; of turns it is the first task."""
    served = apart(harness, temporal, Routing.spread())
    at = served.harness
    async with AsyncExitStack() as stack:
        await serve(stack, at, tuple(kind for kind in ALL_KINDS if kind is not late))
        address = await served.begin(Line("asking", [PAY]), DONE)

        async def met() -> bool:
            pending = (await served.handle(address).describe()).raw_description.pending_activities
            return late is Kind.TURNS or (bool(pending) and pending[0].activity_type.name.startswith(late.value))

        await until(met)
        before = len((await served.history(address)).events)
        ending = asyncio.ensure_future(end(served, address))

        async def received() -> bool:
            return len((await served.history(address)).events) > before

        await until(received)
        await serve(stack, at, (late,))
        await ending
        approvals = await at.rows("SELECT status FROM approvals WHERE turn_id = $1", address.turn_id)
        assert {row["status"] for row in approvals} <= {"cancelled"}


async def raise_to(served: Served, address: TurnAddress, by: str = "reviewer", **given: int) -> None:
    person = served.harness.people[by]
    async with served.harness.db.transaction("local") as tx:
        decider = Decider(person.user_id, person.roles)
        _, note = await raise_limits(tx, address.turn_id, decider, person.name, LimitRaise(**given))
    assert note is not None
    await served.harness.deps.notifier.deliver_soon(note)


async def test_a_raised_limit_continues_the_turn_and_can_be_requested_again(served: Served) -> None:
    address = await served.paused(LOOKS, LOOKS, Line("found"), limits=ASKS)
    row = await served.row(address)
    assert (row["status"], row["waiting"]["kind"]) == ("awaiting_approval", "limit")
    assert row["waiting"]["ids"] == [approval_id(address.turn_id, "l1")] and row["waiting"]["expires_at"]
    assert (await served.nodes(address))[-2:] == ["initial_llm_call", "output_format"]
    await raise_to(served, address, max_tokens=20)
    await served.waits_for(address, approval_id(address.turn_id, "l2"))
    await raise_to(served, address, max_tokens=100)
    row = await served.until(address, *ENDED)
    assert (row["status"], row["answer"]) == ("completed", "found")
    assert (row["limits"]["max_tokens"], row["attempts"]) == (100, 3), "nothing was asked of the model twice"
    assert [message["role"] for message in served.sent_to_model(address)[-1]] == ["user", *["assistant", "tool"] * 2]
    assert (await served.states(address)) == {"t1.0": "done", "t2.0": "done"}
    budget = [event["code"] for event in await served.harness.event_data(address.turn_id, "budget")]
    assert budget == ["limit_spent", "limit_raised"] * 2
    raised = "SELECT data FROM audit_trail WHERE kind = 'turn.limits_raised' AND turn_id = $1 ORDER BY id LIMIT 1"
    data = await served.harness.value(raised, address.turn_id)
    assert (data["limits_before"]["max_tokens"], data["limits"]["max_tokens"]) == (10, 20)
    statuses = await served.harness.rows("SELECT status FROM approvals WHERE turn_id = $1", address.turn_id)
    assert [row["status"] for row in statuses] == ["approved", "approved"]
    with refused("already_decided"):
        await raise_to(served, address, max_tokens=200)


@pytest.mark.parametrize("how", ["refused", "expired"])
async def test_a_raise_that_is_refused_or_not_given_in_time_ends_the_turn_as_limited(served: Served, how: str) -> None:
    address = await served.paused(LOOKS, Line("never said"), limits=ASKS)
    if how == "refused":
        await served.decide(address, "l1", Decision.REJECT, comment="dear enough")
    else:
        await served.harness.write("UPDATE approvals SET expires_at = now() WHERE turn_id = $1", address.turn_id)
        await served.wake(address, {"kind": "request"})
    row = await served.until(address, *ENDED)
    assert (row["status"], row["problem"]["code"], row["attempts"]) == ("limited", "token_budget_spent", 1)
    assert ("dear enough" in row["problem"]["message"]) == (how == "refused")
    _, row = await served.run_to_end(Line("goes on"), conversation_id=address.conversation_id)
    assert row["status"] == "completed"


async def test_a_restarted_turn_finds_the_limit_that_it_waits_for(served: Served) -> None:
    address = await served.paused(LOOKS, Line("found"), limits=ASKS)
    await start_cold(served, address)
    await raise_to(served, address, max_tokens=100)
    row = await served.until(address, *ENDED)
    assert (row["status"], row["answer"], row["attempts"]) == ("completed", "found", 2)


REFUSED: list[tuple[str, dict[str, int], str]] = [
    ("requester", {"max_tokens": 100}, "role_required"),
    ("reviewer", {"max_tokens": 9}, "limit_not_raised"),
    ("reviewer", {"max_tokens": 10}, "still_spent"),
    ("reviewer", {"max_cost_microusd": 10_000_000}, "still_spent"),
]


async def test_a_forbidden_or_useless_raise_of_a_limit_is_refused(served: Served) -> None:
    address = await served.paused(LOOKS, Line("found"), limits=ASKS)
    with refused("raise_the_limit"):
        await served.decide(address, "l1", Decision.APPROVE)
    for by, given, code in REFUSED:
        with refused(code):
            await raise_to(served, address, by, **given)
    await served.stop(address)
    assert (await served.until(address, *ENDED))["status"] == TurnStatus.STOPPED.value
    with refused("already_decided"):
        await raise_to(served, address, max_tokens=100)
    other, _ = await served.run_to_end(Line("no limit met"))
    with refused("not_waiting_for_a_limit"):
        await raise_to(served, other, max_tokens=5)


TURNS = 200
LIMIT = 1_000
"""Of the 2,000 tokens that the turns would use."""
FIRST = 8
"""Turns whose worker is killed; each then counts with all that it had reserved."""


async def limit_tenant(harness: Harness, limits: DayLimits) -> None:
    async with harness.db.transaction("local") as tx:
        await set_day_limits(tx, limits, harness.people["admin"].user_id)


async def today(harness: Harness) -> tuple[int, int]:
    """Used and held tokens of the tenant."""
    rows = await harness.rows("SELECT used_tokens, held_tokens FROM day_usage WHERE agent_id = $1", TENANT)
    return (rows[0]["used_tokens"], rows[0]["held_tokens"]) if rows else (0, 0)


@pytest.mark.soak
async def test_a_days_budget_is_exceeded_by_less_than_one_call_despite_kills(
    harness: Harness, temporal: Client, urls: Urls, parts: DataParts
) -> None:
    served = apart(harness, temporal, Routing.compact())
    at = served.harness
    await limit_tenant(at, DayLimits(max_tokens=LIMIT))

    async def busy() -> bool:
        return (await today(at))[1] >= 4 * HOLDS_TOKENS

    async with AsyncExitStack() as stack:
        await serve(stack, at, tuple(kind for kind in ALL_KINDS if kind is not Kind.LLM))
        turns = [await served.begin(Line("yes", seconds=2.0)) for _ in range(FIRST)]
        async with worker_process(Kind.LLM, urls, parts, at.routing.llm) as process:
            await until(busy, seconds=60)
            process.kill()
            await process.wait()
        turns += [await served.begin(Line("yes", seconds=0.5)) for _ in range(TURNS - FIRST)]
        lost = (await today(at))[1]
        assert lost >= 4 * HOLDS_TOKENS, "it died with calls under way"
        async with worker_process(Kind.LLM, urls, parts, at.routing.llm):
            rows = [await served.until(turn, *ENDED, seconds=150) for turn in turns]
    ends = {(row["status"], (row["problem"] or {}).get("code")) for row in rows}
    assert ends == {("completed", None), ("limited", "day_token_budget_spent")}
    used, held = await today(at)
    assert (used, held) == (sum(row["input_tokens"] + row["output_tokens"] for row in rows), 0)
    answered = sum(1 for row in rows if row["status"] == "completed")
    assert used == 10 * answered + lost, "what was lost counts with all that it had reserved"
    assert LIMIT * 3 // 4 <= used < LIMIT + HOLDS_TOKENS, "most of it was used, and not refused for reservations"
    await limit_tenant(at, DayLimits())


async def test_a_days_budget_spent_in_a_wait_ends_the_turn_until_the_next_day(served: Served, harness: Harness) -> None:
    address = await served.paused(Line("may I?", [PAY]), Line("paid"))
    await limit_tenant(harness, DayLimits(max_tokens=1))
    await served.decide(address)
    row = await served.until(address, *ENDED)
    assert (row["status"], row["problem"]["code"]) == ("limited", "day_token_budget_spent")
    assert served.effects(address, "/pay") == 1, "what was approved has happened, and is in the record"
    assert (await harness.kinds(address.turn_id))[-2:] == ["workflow.error", "done"]
    problem = {"code": "day_token_budget_spent", "message": row["problem"]["message"]}
    assert await harness.event_data(address.turn_id, "budget") == [problem]
    await harness.write("UPDATE day_usage SET day = day - 1")
    await harness.write("UPDATE model_calls SET started_at = started_at - interval '1 day'")
    _, row = await served.run_to_end(Line("a new day"), conversation_id=address.conversation_id)
    assert (row["status"], row["answer"]) == ("completed", "a new day")
    await limit_tenant(harness, DayLimits())


@pytest.mark.timed
async def test_an_end_interrupted_by_kill_9_is_completed_by_another_worker(
    harness: Harness, temporal: Client, urls: Urls, parts: DataParts
) -> None:
    served = apart(harness, temporal, Routing.spread())
    at = served.harness
    async with AsyncExitStack() as stack:
        await serve(stack, at, tuple(kind for kind in ALL_KINDS if kind is not Kind.TURNS))
        async with worker_process(Kind.TURNS, urls, parts, at.routing.turns) as process:
            address = await served.begin(Line("well"))
            await wait_for_word(process, b"ending")
            process.kill()
        killed = time.monotonic()
        await serve(stack, at, (Kind.TURNS,))
        row = await served.until(address, TurnStatus.COMPLETED)
        assert time.monotonic() - killed < RECOVERY_SECONDS
    assert row["answer"] == "well"
    assert (await at.kinds(address.turn_id)).count("done") == 1
