"""Thousands of turns stay paused while workers restart, Postgres is killed and hundreds are approved together."""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Sequence

import httpx
import psutil
import pytest

from perdure.contracts.ids import turn_workflow_id
from perdure.store.database import new_id
from tests.acceptance.approvals.conftest import Answer, LoadedStack, Person, decide, with_tokens
from tests.acceptance.approvals.paused_turns import AT_ONCE, Paused
from tests.acceptance.machine import Others
from tests.acceptance.running import WORKERS
from tests.eventually import until
from tests.scale import PATIENCE_SECONDS, sized

pytestmark = [pytest.mark.soak, pytest.mark.timeout(PATIENCE_SECONDS)]

PAUSED = sized(10_000, 200)
APPROVED = sized(500, 20)
DECISIONS = sized(2_000, 90)
KILLS = sized(10, 3)
DECIDERS = 4
AGAIN = {500, 502, 503, 504}


async def watch_memory(refund_stack: LoadedStack, largest: Counter[str]) -> None:
    """Keep the most memory that each worker process has had, looked at twice a second."""
    while True:
        pids = refund_stack.stack.read()["pids"]
        for role in WORKERS:
            try:
                now = psutil.Process(pids[role]).memory_info().rss
            except (KeyError, psutil.NoSuchProcess):
                continue
            largest[role] = max(largest[role], now)
        await asyncio.sleep(0.5)


def cpu_seconds(refund_stack: LoadedStack) -> Counter[str]:
    """The usage of each process of the stack, with its children."""
    used: Counter[str] = Counter()
    for role, pid in refund_stack.stack.read()["pids"].items():
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            times = each.cpu_times()
            used[role] += round(times.user + times.system)
    return used


async def where(refund_stack: LoadedStack, turns: Sequence[Paused]) -> dict[tuple[str, str], tuple[int, int]]:
    """The number of turns in each state, and of events in their conversations."""
    async with refund_stack.db.transaction("local") as tx:
        rows = await tx.fetch(
            "SELECT t.status AS turn, a.status AS approval, count(*) AS turns, sum(c.event_seq) AS events FROM turns t "
            "JOIN approvals a ON a.turn_id = t.id JOIN conversations c ON c.id = t.conversation_id "
            "WHERE t.id = ANY($1) GROUP BY 1, 2",
            [turn.turn_id for turn in turns],
        )
    return {(row["turn"], row["approval"]): (row["turns"], int(row["events"])) for row in rows}


async def run_ids(refund_stack: LoadedStack, turns: Sequence[Paused]) -> list[str]:
    found = []
    for start in range(0, len(turns), AT_ONCE):
        names = [turn_workflow_id(turn.turn_id) for turn in turns[start : start + AT_ONCE]]
        told = await asyncio.gather(*(refund_stack.temporal.get_workflow_handle(name).describe() for name in names))
        found += [each.run_id for each in told]
    return found


async def approve(reviewer: Person, turns: Sequence[Paused]) -> list[Answer]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(turn: Paused) -> Answer:
        async with gate:
            return await decide(reviewer, turn.approval_id, "approve", turn.digest)

    return await asyncio.gather(*(one(turn) for turn in turns))


async def until_done(refund_stack: LoadedStack, turns: Sequence[Paused], seconds: float) -> None:
    async def are_done() -> bool:
        return (await where(refund_stack, turns)).keys() == {("completed", "done")}

    await until(are_done, seconds, every=0.5)


async def test_after_a_restart_only_approved_turns_end(refund_stack: LoadedStack) -> None:
    with Others() as making:
        turns = await refund_stack.paused(PAUSED)
    every = PAUSED // APPROVED
    chosen, others = turns[::every][:APPROVED], [turn for number, turn in enumerate(turns) if number % every]
    before, runs = await where(refund_stack, others), await run_ids(refund_stack, others[:200])
    assert before.keys() == {("awaiting_approval", "pending")}
    refunded = len(await refund_stack.refunds())
    largest: Counter[str] = Counter()
    watching = asyncio.create_task(watch_memory(refund_stack, largest))
    try:
        back = await asyncio.to_thread(refund_stack.stack.wait_restarted, refund_stack.stack.kill(*WORKERS))
        async with with_tokens(refund_stack.stack.token("admin"), ["reviewer"], [refund_stack.stack.api]) as (
            reviewer,
        ):
            used = cpu_seconds(refund_stack)
            with Others() as burst:
                answers = await approve(reviewer, chosen)
                decided_seconds = time.monotonic() - back
                await until_done(refund_stack, chosen, 120.0)
    finally:
        watching.cancel()
    print(f"\npaused: {PAUSED} made in {making}; {APPROVED} decided in {decided_seconds:.1f} s, done in {burst}")
    print(f"CPU seconds of the burst: {dict(cpu_seconds(refund_stack) - used)}")
    print(f"workers' largest resident memory, MB: { ({role: round(size / 1e6) for role, size in largest.items()}) }")
    assert Counter((answer.status, answer.says) for answer in answers) == {(200, "approved"): APPROVED}
    assert await where(refund_stack, others) == before, "no notice is about the others"
    assert await run_ids(refund_stack, others[:200]) == runs, "nor woken them"
    assert sorted((await refund_stack.refunds())[refunded:]) == sorted(turn.key for turn in chosen)
    assert max(largest.values()) < 1_500_000_000


class Deciding:
    """Decisions that are tried until there is an answer; every other one bears a key, and so may be asked again."""

    def __init__(self, people: Sequence[Person], turns: Sequence[Paused]) -> None:
        self._people = itertools.cycle(people)
        self._waiting = list(enumerate(turns))
        self._chance = random.Random(11)
        self.answers: dict[str, tuple[str, bool, Answer]] = {}
        """Per approval: the decision, whether it was sent more than once, the answer."""
        self.repeats: Counter[str] = Counter()
        self._taken = asyncio.Condition()

    async def run(self) -> None:
        await asyncio.gather(*(self._worker() for _ in range(8)))

    async def _worker(self) -> None:
        while self._waiting:
            number, turn = self._waiting.pop()
            async with self._taken:
                self._taken.notify_all()
            await self._one(next(self._people), turn, new_id() if number % 2 else None)

    async def _one(self, person: Person, turn: Paused, key: str | None) -> None:
        decision = self._chance.choice(("approve", "reject"))
        for tries in itertools.count():
            try:
                answer = await decide(person, turn.approval_id, decision, turn.digest, "outage", key)
            except (httpx.TransportError, ValueError) as error:
                self.repeats[type(error).__name__] += 1
            else:
                if answer.status not in AGAIN:
                    self.answers[turn.approval_id] = (decision, tries > 0 and key is None, answer)
                    return
                self.repeats[f"{answer.status} {answer.says}"] += 1
            await asyncio.sleep(0.3)

    async def _until_left(self, most: int) -> None:
        """Wait until no more than so many are still to be begun."""
        async with self._taken:
            await self._taken.wait_for(lambda: len(self._waiting) <= most)

    async def while_postgres_is_killed(self, refund_stack: LoadedStack) -> None:
        """SIGKILL the postmaster whenever a share of the decisions is made; it is back each time."""
        for number in range(KILLS):
            await self._until_left(DECISIONS * (KILLS - number) // (KILLS + 1))
            await asyncio.to_thread(refund_stack.stack.wait_restarted, refund_stack.stack.kill("postgres"))


async def outcome(refund_stack: LoadedStack, turns: Sequence[Paused]) -> dict[str, tuple[str, str, str, int, str]]:
    """Per approval: its status, the decisions with their reviewers, and the turn's status."""
    async with refund_stack.db.transaction("local") as tx:
        rows = await tx.fetch(
            "SELECT a.id::text, a.status, a.decision->>'type' AS decision, u.name, t.status AS turn, "
            "(SELECT count(*) FROM audit x WHERE x.subject = a.id::text AND x.kind = 'approval.decided') AS times "
            "FROM approvals a JOIN turns t ON t.id = a.turn_id LEFT JOIN users u ON u.id = a.decided_by "
            "WHERE a.id = ANY($1)",
            [turn.approval_id for turn in turns],
        )
    return {row["id"]: (row["status"], row["decision"], row["name"], row["times"], row["turn"]) for row in rows}


async def test_an_acknowledged_decision_survives_an_outage_exactly_once(refund_stack: LoadedStack) -> None:
    turns = await refund_stack.paused(DECISIONS)
    refunded = len(await refund_stack.refunds())
    names = [f"outage-{number}" for number in range(DECIDERS)]
    async with with_tokens(refund_stack.stack.token("admin"), names, [refund_stack.stack.api]) as people:
        deciding = Deciding(people, turns)
        with Others() as clocked:
            await asyncio.gather(deciding.run(), deciding.while_postgres_is_killed(refund_stack))
    print(f"\noutage: {DECISIONS} decisions, Postgres killed {KILLS} times, {clocked}")
    print(f"asked again after: {dict(deciding.repeats)}")
    assert len(deciding.answers) == DECISIONS
    began = time.monotonic()

    async def completed() -> dict[str, tuple[str, str, str, int, str]] | None:
        found = await outcome(refund_stack, turns)
        return found if {each[4] for each in found.values()} == {"completed"} else None

    found = await until(completed, sized(1_500, 120), every=1)
    print(f"every turn had ended {time.monotonic() - began:.1f} s after the last decision")
    for approval_id, (decision, repeated, answer) in deciding.answers.items():
        _, stands, by, times, _ = found[approval_id]
        assert (stands, by, times) == (decision, answer.by, 1), answer
        # A second request without an idempotency key is refused: the first one counted.
        assert answer.status == 200 or (repeated and answer.says == "already_decided"), answer
    approved = {turn.key for turn in turns if deciding.answers[turn.approval_id][0] == "approve"}
    assert sorted((await refund_stack.refunds())[refunded:]) == sorted(approved), (
        "each approved call ran once, no other did"
    )
    assert Counter(each[0] for each in found.values()) == {"done": len(approved), "rejected": DECISIONS - len(approved)}
