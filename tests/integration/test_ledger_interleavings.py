"""Everything that touches a turn, at once and in no order: nothing waits for each other crosswise, nothing tears."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import asyncpg
import pytest
from pydantic import JsonValue
from temporalio.exceptions import ApplicationError

from perdure.activities.approvals import ApprovalActivities
from perdure.activities.memory import MemoryActivities
from perdure.activities.model import ModelActivities
from perdure.contracts.activities import LoadAsk, VerdictsAsk
from perdure.contracts.approvals import RequestRef
from perdure.contracts.errors import CallerError
from perdure.contracts.ids import effect_key
from perdure.contracts.turns import FinishAsk, TurnAddress, TurnStatus
from perdure.core.approvals.decisions import Decider, Decision
from perdure.core.turns import Caps, OnBusy
from perdure.store.calls.effects import settle_by_person
from perdure.store.turns.finish import finish
from perdure.store.turns.reconcile import ring_decided, start_stranded
from perdure.store.turns.start import request_stop
from tests.desk import Desk, gathered
from tests.doubles.spoken import Line
from tests.scale import sized

Operation = Callable[[], Coroutine[Any, Any, None]]
CONVERSATIONS = 6
OPERATIONS = sized(900, 400)
AT_ONCE = 30
MOST_BATCHES = 5
ROUND: list[tuple[str, dict[str, JsonValue]]] = [
    ("pay", {"amount": 1}),
    ("post", {"mode": "break"}),
    ("jot", {"text": "x"}),
    ("look", {}),
]
CALLS = [f"t1.{index}" for index in range(len(ROUND))]
ENDS = [TurnStatus.COMPLETED, TurnStatus.FAILED, TurnStatus.LIMITED, TurnStatus.STOPPED]
EXPECTED = (CallerError, ApplicationError)
"""Refusals and attempts that are to be made again; anything else is a tear."""


class Storm:
    """Random operations on turns of a few conversations, some of which begin as others end."""

    def __init__(self, desk: Desk, conversations: list[str], seed: int) -> None:
        self.desk = desk
        self.conversations = conversations
        self.chance = random.Random(seed)
        self.turns: list[TurnAddress] = []
        self.attempts = 0

    async def turn(self) -> TurnAddress:
        """One of the latest turns."""
        return self.chance.choice(self.turns[-2 * CONVERSATIONS :])

    async def admitted(self) -> TurnAddress:
        """One of the latest turns that have a workflow, which a turn that waits in a queue has not."""
        rows = await self.desk.rows(
            "SELECT id, conversation_id FROM turns WHERE conversation_id = ANY($1) AND status <> 'queued' "
            "ORDER BY created_at DESC LIMIT $2",
            self.conversations,
            2 * CONVERSATIONS,
        )
        row = self.chance.choice(rows)
        return TurnAddress(tenant_id="local", conversation_id=str(row["conversation_id"]), turn_id=str(row["id"]))

    async def start(self) -> None:
        """A new turn, at once or behind the others."""
        address, _ = await self.desk.start(
            Line("asking", ROUND),
            conversation_id=self.chance.choice(self.conversations),
            on_busy=OnBusy.QUEUE,
            caps=Caps(queue_depth=3, turns_a_user=100_000),
        )
        self.turns.append(address)

    async def load(self) -> None:
        """What a fresh run loads."""
        given = LoadAsk(address=await self.admitted(), agent_id="desk", agent_version=await self.desk.version())
        await self.desk.activity(MemoryActivities(self.desk.deps).load, given, attempt=self.attempt())

    async def model(self) -> None:
        """The model call that plans the round."""
        call = await self.desk.model_call(await self.admitted())
        await self.desk.activity(ModelActivities(self.desk.deps).complete, call, attempt=self.attempt())

    async def open(self) -> None:
        """The approvals of the round."""
        address = await self.admitted()
        if await self.planned(address):
            await self.desk.open(address, *CALLS[:2])

    async def read(self) -> None:
        """The verdicts of the round."""
        address = await self.admitted()
        rows = await self.desk.rows("SELECT id, call_id FROM approvals WHERE turn_id = $1", address.turn_id)
        requests = tuple(RequestRef(request_id=str(row["id"]), call_id=row["call_id"], tool="x") for row in rows)
        given = VerdictsAsk(address=address, requests=requests)
        await self.desk.activity(ApprovalActivities(self.desk.deps).read, given, attempt=self.attempt())

    async def decide(self) -> None:
        """A reviewer decides on one of them."""
        address = await self.admitted()
        rows = await self.desk.rows("SELECT id FROM approvals WHERE turn_id = $1", address.turn_id)
        if rows:
            decision = self.chance.choice([Decision.APPROVE, Decision.APPROVE, Decision.REJECT])
            await self.desk.decide(str(self.chance.choice(rows)["id"]), decision, comment="storm")

    async def run(self) -> None:
        """A call of the round."""
        address, call_id = await self.admitted(), self.chance.choice(CALLS)
        if await self.planned(address):
            await self.desk.run_tool(address, call_id, attempt=self.attempt())

    async def settle(self) -> None:
        """A person settles what is unknown."""
        address, reviewer = await self.turn(), self.desk.people["reviewer"]
        async with self.desk.db.transaction("local") as tx:
            key = effect_key(address.turn_id, "t1.1")
            await settle_by_person(tx, key, Decider(reviewer.user_id, reviewer.roles, "reviewer"), "happened", "storm")

    async def stop(self) -> None:
        """The user stops a turn, also one that still waits."""
        address = await self.turn()
        async with self.desk.db.transaction("local") as tx:
            await request_stop(tx, address.turn_id, self.desk.people["requester"].user_id)

    async def finish(self) -> None:
        """A run ends its turn."""
        ask = FinishAsk(address=await self.admitted(), status=self.chance.choice(ENDS))
        async with self.desk.db.transaction("local") as tx:
            await finish(tx, ask)

    async def reconcile(self) -> None:
        """The reconciler's own statements."""
        async with self.desk.db.transaction("local") as tx:
            await ring_decided(tx, "local")
            await start_stranded(tx, "local")

    def attempt(self) -> int:
        """The number of the next attempt."""
        self.attempts += 1
        return self.attempts

    async def planned(self, address: TurnAddress) -> bool:
        """Whether the round is in the ledger."""
        return bool(await self.desk.value("SELECT true FROM tool_calls WHERE turn_id = $1 LIMIT 1", address.turn_id))

    async def ended(self) -> int:
        """How many turns have ended."""
        query = "SELECT count(*) FROM turns WHERE conversation_id = ANY($1) AND ended_at IS NOT NULL"
        return int(await self.desk.value(query, self.conversations))

    async def rage(self) -> list[Any]:
        """Runs the operations, many at once, until enough turns have ended; how many do depends on the machine."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(operation: Operation) -> None:
            async with gate:
                await operation()

        answers: list[Any] = []
        for _ in range(MOST_BATCHES):
            answers += await gathered(*(one(operation) for operation in self.operations()))
            if await self.ended() > CONVERSATIONS:
                break
        return answers

    def operations(self) -> list[Operation]:
        """What happens, in a random order, often or seldom."""
        often: dict[Operation, float] = {self.model: 8, self.open: 8, self.decide: 10, self.run: 24}
        steady: dict[Operation, float] = {self.read: 4, self.start: 3, self.load: 1}
        seldom: dict[Operation, float] = {self.settle: 2, self.stop: 0.5, self.finish: 1.2, self.reconcile: 1}
        weighted = often | steady | seldom
        return self.chance.choices(list(weighted), list(weighted.values()), k=OPERATIONS)


@pytest.mark.sized
async def test_whatever_happens_at_once_nothing_deadlocks_and_the_journal_has_no_gaps(desk: Desk) -> None:
    conversations = [await desk.conversation() for _ in range(CONVERSATIONS)]
    storm = Storm(desk, conversations, seed=2026)
    for _ in range(2 * CONVERSATIONS):
        await gathered(storm.start())
    answers = await storm.rage()
    odd = [each for each in answers if isinstance(each, BaseException) and not isinstance(each, EXPECTED)]
    assert not odd, odd[:3]
    codes = {each.type for each in answers if isinstance(each, ApplicationError)}
    assert codes <= {"tool_unavailable", "settle_refused"}, codes
    assert await deadlocks(desk) == 0
    await the_journal_is_whole(desk, conversations)
    await each_turn_ends_once(desk, storm.turns)
    await nothing_happened_twice(desk, storm.turns)


async def deadlocks(desk: Desk) -> int:
    """How many Postgres had to break."""
    async with desk.db.pool.acquire() as connection:
        assert isinstance(connection, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy)
        await connection.execute("SELECT pg_stat_force_next_flush()")
        count: int = await connection.fetchval(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )
    return count


async def the_journal_is_whole(desk: Desk, conversations: list[str]) -> None:
    """Events are numbered without gaps, and what is active is open."""
    for conversation_id in conversations:
        rows = await desk.rows("SELECT seq FROM events WHERE conversation_id = $1 ORDER BY seq", conversation_id)
        head = await desk.value("SELECT event_seq FROM conversations WHERE id = $1", conversation_id)
        assert [row["seq"] for row in rows] == list(range(1, head + 1))
        running = await desk.rows(
            "SELECT t.id, c.active_turn_id FROM turns t JOIN conversations c ON c.id = t.conversation_id "
            "WHERE c.id = $1 AND t.ended_at IS NULL AND t.status <> 'queued'",
            conversation_id,
        )
        assert len(running) <= 1, "one turn at a time"
        assert all(row["id"] == row["active_turn_id"] for row in running)


async def each_turn_ends_once(desk: Desk, turns: list[TurnAddress]) -> None:
    """`done` is said once, and last."""
    ended = 0
    for address in turns:
        kinds = await desk.kinds(address.turn_id)
        if await desk.value("SELECT ended_at FROM turns WHERE id = $1", address.turn_id):
            ended += 1
            assert (kinds.count("done"), kinds[-1]) == (1, "done"), kinds
        else:
            assert "done" not in kinds
    assert ended > CONVERSATIONS, "the storm was long enough to matter"


async def nothing_happened_twice(desk: Desk, turns: list[TurnAddress]) -> None:
    """Each effect at most once, and only where the ledger admits it."""
    happened = 0
    for address in turns:
        paid = desk.world.effects.count(("/pay", effect_key(address.turn_id, "t1.0")))
        posted = desk.world.effects.count(("/post", f"{address.turn_id}/t1.1"))
        jotted = await desk.value("SELECT count(*) FROM entities WHERE created_by_turn = $1", address.turn_id)
        assert max(paid, posted, jotted) <= 1
        rows = await desk.rows("SELECT call_id, state FROM tool_calls WHERE turn_id = $1", address.turn_id)
        states = {row["call_id"]: row["state"] for row in rows}
        for count, call_id in ((paid, "t1.0"), (posted, "t1.1"), (jotted, "t1.2")):
            assert not count or states[call_id] in ("done", "outcome_unknown"), states
            assert count or states.get(call_id) != "done" or call_id == "t1.1", states
        happened += paid + posted + jotted
    assert happened > 2, "the storm was wild enough to matter"
