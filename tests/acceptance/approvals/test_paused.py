"""Thousands of turns wait, the workers restart, hundreds are approved at once: these end, the others do not move."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

import psutil
import pytest

from perdure.contracts.ids import turn_workflow_id
from tests.acceptance.approvals.conftest import Busy
from tests.acceptance.approvals.deciders import Answer, Person, decide, with_tokens
from tests.acceptance.approvals.paused_turns import Paused
from tests.scale import PATIENCE_SECONDS, Clocked, sized

pytestmark = pytest.mark.soak

PAUSED = sized(10_000, 200)
APPROVED = sized(500, 20)
DONE_SECONDS = 120.0
WORKER_BYTES = 1_500_000_000
WORKERS = ("worker-turns", "worker-llm", "worker-relay")
AT_ONCE = 24
_WHERE_THEY_ARE = """
SELECT t.status AS turn, a.status AS approval, count(*) AS turns, sum(c.event_seq) AS events FROM turns t
JOIN approvals a ON a.turn_id = t.id JOIN conversations c ON c.id = t.conversation_id WHERE t.id = ANY($1) GROUP BY 1, 2
"""


class Largest:
    """The most memory that each worker process has had, looked at twice a second."""

    def __init__(self, busy: Busy) -> None:
        self._busy = busy
        self.bytes: Counter[str] = Counter()

    async def watch(self) -> None:
        while True:
            pids = self._busy.stack.read()["pids"]
            for role in WORKERS:
                try:
                    now = psutil.Process(pids[role]).memory_info().rss
                except (KeyError, psutil.NoSuchProcess):
                    continue
                self.bytes[role] = max(self.bytes[role], now)
            await asyncio.sleep(0.5)


def cpu_seconds(busy: Busy) -> Counter[str]:
    """What each process of the stack has used so far, with those that it has started."""
    used: Counter[str] = Counter()
    for role, pid in busy.stack.read()["pids"].items():
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            times = each.cpu_times()
            used[role] += round(times.user + times.system)
    return used


async def where(busy: Busy, turns: Sequence[Paused]) -> dict[tuple[str, str], tuple[int, int]]:
    """How many turns stand where, and how much their conversations have heard."""
    async with busy.db.transaction("local") as tx:
        rows = await tx.fetch(_WHERE_THEY_ARE, [turn.turn_id for turn in turns])
    return {(row["turn"], row["approval"]): (row["turns"], int(row["events"])) for row in rows}


async def run_ids(busy: Busy, turns: Sequence[Paused]) -> list[str]:
    found = []
    for start in range(0, len(turns), AT_ONCE):
        handles = [
            busy.temporal.get_workflow_handle(turn_workflow_id(turn.turn_id)) for turn in turns[start : start + AT_ONCE]
        ]
        found += [(await each).run_id for each in asyncio.as_completed([handle.describe() for handle in handles])]
    return sorted(found)


async def approve(reviewer: Person, turns: Sequence[Paused]) -> list[Answer]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(turn: Paused) -> Answer:
        async with gate:
            return await decide(reviewer, turn.approval_id, "approve", turn.digest)

    return await asyncio.gather(*(one(turn) for turn in turns))


async def done(busy: Busy, turns: Sequence[Paused], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while (await where(busy, turns)).keys() != {("completed", "done")}:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.5)
    return True


@pytest.mark.timeout(PATIENCE_SECONDS)
async def test_a_burst_of_approvals_after_a_restart_ends_those_turns_and_moves_no_other(busy: Busy) -> None:
    with Clocked() as making:
        turns = await busy.paused(PAUSED)
    chosen, others = (
        turns[:: PAUSED // APPROVED][:APPROVED],
        [turn for number, turn in enumerate(turns) if number % (PAUSED // APPROVED)],
    )
    before, runs = await where(busy, others), await run_ids(busy, others[:200])
    assert before.keys() == {("awaiting_approval", "pending")}
    refunded = len(await busy.refunds())
    largest = Largest(busy)
    watching = asyncio.create_task(largest.watch())
    try:
        killed = busy.stack.kill(*WORKERS)
        back = await asyncio.to_thread(busy.stack.wait_restarted, killed)
        async with with_tokens(busy.stack.token("admin"), ["reviewer"], [busy.stack.api]) as (reviewer,):
            used = cpu_seconds(busy)
            with Clocked() as burst:
                answers = await approve(reviewer, chosen)
                decided_seconds = time.monotonic() - back
                in_time = await done(busy, chosen, DONE_SECONDS)
    finally:
        watching.cancel()
    memory = {role: round(size / 1e6) for role, size in largest.bytes.items()}
    print(f"\npaused: {PAUSED} made in {making}; {APPROVED} decided in {decided_seconds:.1f} s, done in {burst}")
    print(f"CPU seconds of the burst: {dict(cpu_seconds(busy) - used)}")
    print(f"workers' largest resident memory, MB: {memory}")
    assert Counter((answer.status, answer.says) for answer in answers) == {(200, "approved"): APPROVED}
    assert in_time, await where(busy, chosen)
    assert await where(busy, others) == before, "nobody has written about the others"
    assert await run_ids(busy, others[:200]) == runs, "nor woken them"
    assert sorted((await busy.refunds())[refunded:]) == sorted(turn.key for turn in chosen)
    assert max(largest.bytes.values()) < WORKER_BYTES
