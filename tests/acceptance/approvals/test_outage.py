"""Postgres is killed again and again while people decide: what was acknowledged stands, and stands once."""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Sequence

import httpx
import pytest

from perdure.store.database import new_id
from tests.acceptance.approvals.conftest import Busy
from tests.acceptance.approvals.deciders import Answer, Person, decide, with_tokens
from tests.acceptance.approvals.paused_turns import Paused
from tests.scale import PATIENCE_SECONDS, Clocked, sized

pytestmark = pytest.mark.soak

DECISIONS = sized(2_000, 90)
KILLS = sized(10, 3)
DECIDERS = 4
AT_ONCE = 8
RETRY_SECONDS = 0.3
ENDED_SECONDS = sized(1_500, 120)
AGAIN = {500, 502, 503, 504}


class Deciding:
    """Decisions that are tried until there is an answer; every other one bears a key, and so may be asked again."""

    def __init__(self, people: Sequence[Person], turns: Sequence[Paused]) -> None:
        self._people = itertools.cycle(people)
        self._waiting = list(enumerate(turns))
        self._chance = random.Random(11)
        self.answers: dict[str, tuple[str, bool, Answer]] = {}
        """By approval: what was decided, whether it was asked more than once, the answer."""
        self.repeats: Counter[str] = Counter()
        self._taken = asyncio.Condition()

    async def run(self) -> None:
        await asyncio.gather(*(self._worker() for _ in range(AT_ONCE)))

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
            await asyncio.sleep(RETRY_SECONDS)

    async def until_left(self, most: int) -> None:
        """Wait until no more than so many are still to be begun."""
        async with self._taken:
            await self._taken.wait_for(lambda: len(self._waiting) <= most)


async def killing(busy: Busy, deciding: Deciding) -> int:
    """SIGKILL the postmaster whenever a share of the decisions is made; how often, and it was back each time."""
    for number in range(KILLS):
        await deciding.until_left(DECISIONS * (KILLS - number) // (KILLS + 1))
        killed = busy.stack.kill("postgres")
        await asyncio.to_thread(busy.stack.wait_restarted, killed)
    return KILLS


async def outcome(busy: Busy, turns: Sequence[Paused]) -> dict[str, tuple[str, str, str, int, str]]:
    """By approval: its status, what was decided, by whom, how often, and what became of the turn."""
    async with busy.db.transaction("local") as tx:
        rows = await tx.fetch(
            "SELECT a.id::text, a.status, a.decision->>'type' AS decision, u.name, t.status AS turn, "
            "(SELECT count(*) FROM audit x WHERE x.subject = a.id::text AND x.kind = 'approval.decided') AS times "
            "FROM approvals a JOIN turns t ON t.id = a.turn_id LEFT JOIN users u ON u.id = a.decided_by "
            "WHERE a.id = ANY($1)",
            [turn.approval_id for turn in turns],
        )
    return {row["id"]: (row["status"], row["decision"], row["name"], row["times"], row["turn"]) for row in rows}


@pytest.mark.timeout(PATIENCE_SECONDS)
async def test_no_acknowledged_decision_is_lost_and_none_is_made_twice_where_postgres_is_killed(busy: Busy) -> None:
    turns = await busy.paused(DECISIONS)
    refunded = len(await busy.refunds())
    names = [f"outage-{number}" for number in range(DECIDERS)]
    async with with_tokens(busy.stack.token("admin"), names, [busy.stack.api]) as people:
        deciding = Deciding(people, turns)
        with Clocked() as clocked:
            _, kills = await asyncio.gather(deciding.run(), killing(busy, deciding))
    print(f"\noutage: {DECISIONS} decisions, Postgres killed {kills} times, {clocked}")
    print(f"asked again after: {dict(deciding.repeats)}")
    assert len(deciding.answers) == DECISIONS
    began, found = time.monotonic(), await outcome(busy, turns)
    while {each[4] for each in found.values()} != {"completed"}:
        assert time.monotonic() - began < ENDED_SECONDS, Counter(each[4] for each in found.values())
        await asyncio.sleep(1)
        found = await outcome(busy, turns)
    print(f"every turn had ended {time.monotonic() - began:.1f} s after the last decision")
    for approval_id, (decision, repeated, answer) in deciding.answers.items():
        _, stands, by, times, _ = found[approval_id]
        assert (stands, by, times) == (decision, answer.by, 1), answer
        # Asked a second time without a key, it is told the truth: that the first time counted.
        assert answer.status == 200 or (repeated and answer.says == "already_decided"), answer
    approved = {turn.key for turn in turns if deciding.answers[turn.approval_id][0] == "approve"}
    assert sorted((await busy.refunds())[refunded:]) == sorted(approved), "each approved call ran once, no other did"
    assert Counter(each[0] for each in found.values()) == {"done": len(approved), "rejected": DECISIONS - len(approved)}
