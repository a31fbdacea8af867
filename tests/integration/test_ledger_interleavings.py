"""All operations on a turn, in parallel and in random order: no deadlock and no half change."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import asyncpg
import pytest
from pydantic import JsonValue
from temporalio.exceptions import ApplicationError

from perdure.activities.approvals import ApprovalActivities
from perdure.activities.memory import MemoryActivities
from perdure.activities.model import ModelActivities
from perdure.contracts.activities import LoadRequest, VerdictsRequest
from perdure.contracts.approvals import RequestRef
from perdure.contracts.calls import CallState, ToolOutcome
from perdure.contracts.errors import CallerError
from perdure.contracts.ids import effect_key
from perdure.contracts.turns import TurnAddress, TurnStatus
from perdure.core.approvals.decisions import Decision
from perdure.core.turns import Caps, OnBusy
from perdure.store.turns.reconcile import start_stranded, wake_decided
from tests.doubles.message_script import Line
from tests.eventually import until
from tests.harness import Harness, effect_ref, gathered
from tests.scale import sized

Operation = Callable[[], Coroutine[Any, Any, Any]]
Call = tuple[str, dict[str, JsonValue]]
CONVERSATIONS = 6
FEW_EFFECTS = 2
AT_ONCE = 30
ROUND: list[Call] = [("pay", {"amount": 1}), ("post", {"mode": "break"}), ("jot", {"text": "x"}), ("look", {})]
CALLS = [f"t1.{index}" for index in range(len(ROUND))]
ENDS = [TurnStatus.COMPLETED, TurnStatus.FAILED, TurnStatus.LIMITED, TurnStatus.STOPPED]
AGAIN = {"tool_unavailable", "settle_refused"}
"""The codes of an attempt that lost its call; a `store_conflict` would be a deadlock that Postgres ended."""


async def settle(harness: Harness, address: TurnAddress, call_id: str, outcome: str = "happened") -> str:
    """A reviewer settles an effect; returns its key if this was the first settlement."""
    await harness.settle(address, call_id, outcome)
    return effect_key(address.turn_id, call_id)


async def told_apart(harness: Harness, work: list[Coroutine[Any, Any, Any]]) -> tuple[list[Any], set[str]]:
    """Runs all in parallel; returns results and codes of refusals, and raises any other error."""
    before = await deadlocks(harness)
    answers = await gathered(*work)
    failures = [each for each in answers if isinstance(each, BaseException)]
    odd = [each for each in failures if not isinstance(each, CallerError | ApplicationError)]
    assert not odd, odd[:3]
    assert {each.type for each in failures if isinstance(each, ApplicationError)} <= AGAIN
    assert await deadlocks(harness) == before
    return answers, {each.code for each in failures if isinstance(each, CallerError)}


async def deadlocks(harness: Harness) -> int:
    async with harness.db.pool.acquire() as connection:
        assert isinstance(connection, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy)
        await connection.execute("SELECT pg_stat_force_next_flush()")
        sql = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        return int(await connection.fetchval(sql))


class Storm:
    """Random operations on turns of a few conversations, some of which begin as others end."""

    def __init__(self, harness: Harness, conversations: list[str], seed: int) -> None:
        self.harness, self.conversations, self.chance = harness, conversations, random.Random(seed)
        self.turns: list[TurnAddress] = []
        self.attempts = itertools.count(1)

    def turn(self) -> TurnAddress:
        return self.chance.choice(self.turns[-2 * CONVERSATIONS :])

    async def admitted(self) -> TurnAddress:
        """One of the latest turns with a workflow; a queued turn has none."""
        sql = "SELECT id, conversation_id FROM turns WHERE conversation_id = ANY($1) AND status <> 'queued' "
        sql += "ORDER BY created_at DESC LIMIT $2"
        row = self.chance.choice(await self.harness.rows(sql, self.conversations, 2 * CONVERSATIONS))
        return TurnAddress(tenant_id="local", conversation_id=str(row["conversation_id"]), turn_id=str(row["id"]))

    async def start(self) -> None:
        """A new turn, at once or behind the others."""
        where, caps = self.chance.choice(self.conversations), Caps(queue_depth=3, turns_a_user=100_000)
        line = Line("asking", ROUND)
        address, _ = await self.harness.start(line, conversation_id=where, on_busy=OnBusy.QUEUE, caps=caps)
        self.turns.append(address)

    async def load(self) -> None:
        given = LoadRequest(address=await self.admitted(), agent_id="desk", agent_version=await self.harness.version())
        await self.harness.activity(MemoryActivities(self.harness.deps).load, given, attempt=next(self.attempts))

    async def model(self) -> None:
        call = await self.harness.model_call(await self.admitted())
        await self.harness.activity(ModelActivities(self.harness.deps).complete, call, attempt=next(self.attempts))

    async def open(self) -> None:
        address = await self.admitted()
        if await self.planned(address):
            await self.harness.open(address, *CALLS[:2])

    async def approvals(self) -> tuple[TurnAddress, list[asyncpg.Record]]:
        address = await self.admitted()
        return address, await self.harness.rows("SELECT id, call_id FROM approvals WHERE turn_id = $1", address.turn_id)

    async def read(self) -> None:
        address, rows = await self.approvals()
        requests = tuple(RequestRef(request_id=str(row["id"]), call_id=row["call_id"], tool="x") for row in rows)
        given = VerdictsRequest(address=address, requests=requests)
        await self.harness.activity(ApprovalActivities(self.harness.deps).read, given, attempt=next(self.attempts))

    async def decide(self) -> None:
        _, rows = await self.approvals()
        if rows:
            decision = self.chance.choice([Decision.APPROVE, Decision.APPROVE, Decision.REJECT])
            await self.harness.decide(str(self.chance.choice(rows)["id"]), decision, comment="storm")

    async def run(self) -> None:
        address, call_id = await self.admitted(), self.chance.choice(CALLS)
        if await self.planned(address):
            attempt = next(self.attempts)
            await self.harness.run_tool(address, call_id, attempt=attempt, waits=attempt - 1)

    async def finish(self) -> None:
        await self.harness.finish(await self.admitted(), self.chance.choice(ENDS))

    async def reconcile(self) -> None:
        async with self.harness.db.transaction("local") as tx:
            await wake_decided(tx, "local")
            await start_stranded(tx, "local")

    async def planned(self, address: TurnAddress) -> bool:
        return bool(await self.harness.value("SELECT true FROM tool_calls WHERE turn_id = $1 LIMIT 1", address.turn_id))

    async def ended_count(self) -> int:
        query = "SELECT count(*) FROM turns WHERE conversation_id = ANY($1) AND ended_at IS NOT NULL"
        return int(await self.harness.value(query, self.conversations))

    async def rage(self) -> None:
        """Runs many operations at once, in as many batches as it takes to end enough turns with enough effects."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(operation: Operation) -> None:
            async with gate:
                await operation()

        for _ in range(12):
            await told_apart(self.harness, [one(operation) for operation in self.operations()])
            happened = sum([sum(await effects_of(self.harness, address)) for address in self.turns])
            if happened > FEW_EFFECTS and await self.ended_count() > CONVERSATIONS:
                break

    def operations(self) -> list[Operation]:
        """The operations, in a random order and number."""
        often: dict[Operation, float] = {self.model: 8, self.open: 8, self.decide: 10, self.run: 24}
        steady: dict[Operation, float] = {self.read: 4, self.start: 3, self.load: 1}
        seldom: dict[Operation, float] = {
            lambda: settle(self.harness, self.turn(), "t1.1"): 2, lambda: self.harness.stop(self.turn().turn_id): 0.5,
            self.finish: 1.2, self.reconcile: 1,
        }  # fmt: skip
        weighted = often | steady | seldom
        return self.chance.choices(list(weighted), list(weighted.values()), k=sized(900, 400))


@pytest.mark.sized
async def test_random_interleavings_never_deadlock_and_leave_no_gap_in_the_event_log(harness: Harness) -> None:
    conversations = [await harness.conversation() for _ in range(CONVERSATIONS)]
    storm = Storm(harness, conversations, seed=2026)
    for _ in range(2 * CONVERSATIONS):
        await gathered(storm.start())
    await storm.rage()
    await the_journal_is_whole(harness, conversations)
    await each_turn_ends_once(harness, storm.turns)
    await nothing_happened_twice(harness, storm.turns)


async def the_journal_is_whole(harness: Harness, conversations: list[str]) -> None:
    """Events are numbered without gaps, and what is active is open."""
    running = (
        "SELECT t.id = c.active_turn_id FROM turns t JOIN conversations c ON c.id = t.conversation_id "
        "WHERE c.id = $1 AND t.ended_at IS NULL AND t.status <> 'queued'"
    )
    for conversation_id in conversations:
        rows = await harness.rows("SELECT seq FROM events WHERE conversation_id = $1 ORDER BY seq", conversation_id)
        head = await harness.value("SELECT event_seq FROM conversations WHERE id = $1", conversation_id)
        assert [row["seq"] for row in rows] == list(range(1, head + 1))
        assert [row[0] for row in await harness.rows(running, conversation_id)] in ([], [True]), "one turn at a time"


async def each_turn_ends_once(harness: Harness, turns: list[TurnAddress]) -> None:
    """Checks that `done` is emitted once, and last."""
    ended = 0
    for address in turns:
        kinds = await harness.kinds(address.turn_id)
        over = await harness.value("SELECT ended_at IS NOT NULL FROM turns WHERE id = $1", address.turn_id)
        assert (kinds.count("done"), kinds[-1] == "done") == (int(over), over), kinds
        ended += over
    assert ended > CONVERSATIONS, "the storm was long enough to matter"


async def effects_of(harness: Harness, address: TurnAddress) -> tuple[int, int, int]:
    """The number of times that the turn's payment, its post and its entity happened."""
    paid = harness.world.effects.count(("/pay", effect_key(address.turn_id, "t1.0")))
    posted = harness.world.effects.count(("/post", f"{address.turn_id}/t1.1"))
    jotted = await harness.value("SELECT count(*) FROM entities WHERE created_by_turn = $1", address.turn_id)
    return paid, posted, int(jotted)


async def nothing_happened_twice(harness: Harness, turns: list[TurnAddress]) -> None:
    """Checks that each effect happened at most once, and only if the ledger has it."""
    happened = 0
    for address in turns:
        paid, posted, jotted = await effects_of(harness, address)
        assert max(paid, posted, jotted) <= 1
        rows = await harness.rows("SELECT call_id, state FROM tool_calls WHERE turn_id = $1", address.turn_id)
        states = {row["call_id"]: row["state"] for row in rows}
        for count, call_id in ((paid, "t1.0"), (posted, "t1.1"), (jotted, "t1.2")):
            assert not count or states[call_id] in ("done", "outcome_unknown"), states
            assert count or states.get(call_id) != "done" or call_id == "t1.1", states
        happened += paid + posted + jotted
    assert happened > FEW_EFFECTS, "the storm was wild enough to matter"


UNKNOWN: list[Call] = [("shout", {"mode": "wait"})] * 3
TO_RUN: list[Call] = [("book", {}), ("jot", {"text": "x"}), ("look", {}), ("pay", {})]
LOST = [f"t1.{index}" for index in range(len(UNKNOWN))]
OTHERS = [f"t1.{len(UNKNOWN) + index}" for index in range(len(TO_RUN))]


async def ready(harness: Harness) -> tuple[TurnAddress, list[asyncio.Task[ToolOutcome]]]:
    """A turn with lost effects, calls still to run and a turn behind it; and the workers that may still come back."""
    address = await harness.plan(*UNKNOWN, *TO_RUN)
    running = harness.world.running
    frozen = [asyncio.create_task(harness.run_tool(address, call_id)) for call_id in LOST]
    await until(lambda: harness.world.running == running + len(LOST))
    outcomes = await asyncio.gather(*(harness.run_tool(address, call_id, attempt=2) for call_id in LOST))
    assert {outcome.state for outcome in outcomes} == {CallState.OUTCOME_UNKNOWN}
    await harness.write("UPDATE tool_calls SET quiet_at = now() WHERE turn_id = $1", address.turn_id)
    (request,) = await harness.open(address, OTHERS[-1])
    await harness.decide(request.request_id)
    await harness.start(Line("next"), conversation_id=address.conversation_id, on_busy=OnBusy.QUEUE)
    return address, frozen


async def everything(harness: Harness, address: TurnAddress, chance: random.Random) -> list[Coroutine[Any, Any, Any]]:
    """All that may touch one turn several times over, in a random order."""
    load = LoadRequest(address=address, agent_id="desk", agent_version=await harness.version())
    read = VerdictsRequest(address=address, requests=tuple(effect_ref(address, call, "shout") for call in LOST))
    model = await harness.model_call(address, 2)
    work: list[Coroutine[Any, Any, Any]] = [harness.stop(address.turn_id)]
    for number in range(4):
        run_id = f"run-{number + 2}"
        work += [settle(harness, address, call, chance.choice(["happened", "did_not_happen"])) for call in LOST]
        work += [harness.run_tool(address, call, run_id=run_id) for call in (*LOST, *OTHERS)]
        work += [
            harness.activity(MemoryActivities(harness.deps).load, load, run_id=run_id),
            harness.activity(ApprovalActivities(harness.deps).read, read, run_id=run_id),
            harness.activity(ModelActivities(harness.deps).complete, model, run_id=run_id),
            harness.finish(address, chance.choice([TurnStatus.COMPLETED, TurnStatus.FAILED, TurnStatus.STOPPED])),
        ]
    chance.shuffle(work)
    return work


@pytest.mark.sized
@pytest.mark.parametrize("seed", range(sized(5, 1)))
async def test_settles_ends_and_claims_of_one_turn_at_once_never_deadlock(harness: Harness, seed: int) -> None:
    harness.world.go_on.clear()
    turns, chance = [await ready(harness) for _ in range(3)], random.Random(seed)
    work: list[Any] = [task for _, frozen in turns for task in frozen]
    work += [each for address, _ in turns for each in await everything(harness, address, chance)]
    harness.world.go_on.set()
    answers, refused = await told_apart(harness, work)
    assert refused <= {"already_settled"}
    settled = Counter(each for each in answers if isinstance(each, str))
    for address, _ in turns:
        kinds = await harness.kinds(address.turn_id)
        assert (kinds.count("done"), kinds[-1]) == (1, "done")
        keys = [effect_key(address.turn_id, call_id) for call_id in LOST]
        for row in await harness.rows("SELECT * FROM tool_calls WHERE key = ANY($1)", keys):
            # Either its worker returned in time or one settlement counted; never both.
            assert row["state"] in ("done", "failed")
            assert settled[row["key"]] == (row["settled_by"] is not None)
            assert row["settled_by"] is None or row["lost_settles"] == 1, "the worker was refused, and that is counted"
