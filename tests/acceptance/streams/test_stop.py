"""From the request to stop a turn whose model speaks to its last event, as a reader over HTTP sees it: with a model
that says a word every 0.7 s, which its own next word would tell too late, and with one at the usual pace."""

import asyncio
import random
import time

import pytest

from perdure.client import AsyncClient
from tests.acceptance.machine import Others
from tests.acceptance.streams.conftest import SLOW, USUAL, Speaking
from tests.acceptance.streams.following import Followed, begin
from tests.acceptance.streams.speakers import words
from tests.acceptance.test_figures import LOADED, quantile
from tests.scale import FULL, PATIENCE_SECONDS, sized

pytestmark = pytest.mark.soak

TURNS = sized(100, 8)
"""Of each pace."""
WORDS = 400
P95_SECONDS = 0.5


async def _stopped(client: AsyncClient, agent: str, name: str, wait_seconds: float) -> tuple[float, Followed]:
    """How long a stop in the middle of an answer took, and what its reader got."""
    followed = Followed(await begin(client, agent, words(WORDS, name)))
    stopping: asyncio.Task[float] | None = None

    async def stop() -> float:
        await asyncio.sleep(wait_seconds)
        asked = time.monotonic()
        await client.turns.stop(followed.turn_id)
        return asked

    ended = 0.0
    async for event in client.turns.events(followed.turn_id):
        followed.take(event)
        if event.kind == "token" and stopping is None:
            stopping = asyncio.create_task(stop())
        if event.kind == "done":
            ended = time.monotonic()
    assert stopping is not None
    return ended - await stopping, followed


@pytest.mark.timeout(PATIENCE_SECONDS)
async def test_a_stop_ends_an_answer_at_once_and_keeps_what_was_said(speakers: Speaking) -> None:
    chance, took = random.Random(7), dict[str, list[float]]()
    await _stopped(speakers.client, USUAL, "warm", 0.1)
    with Others() as others:
        for number in range(TURNS):
            for agent in (SLOW, USUAL):
                seconds, followed = await _stopped(speakers.client, agent, f"s{number}", chance.random() * 0.6)
                took.setdefault(agent, []).append(seconds)
                turn = await speakers.client.turns.get(followed.turn_id)
                assert (turn.status, followed.status, turn.answer) == ("stopped", "stopped", followed.text)
                assert 0 < len(followed.words) < WORDS
    said = "; ".join(
        f"{agent}: p50 {quantile(sorted(each), 0.5) * 1e3:.0f} ms, p95 {quantile(sorted(each), 0.95) * 1e3:.0f} ms"
        for agent, each in took.items()
    )
    print(f"\nstop to done, {TURNS} turns each: {said}; others {others.share:.0%} of the machine")
    quiet = FULL or others.share < LOADED
    for each in took.values():
        assert quantile(sorted(each), 0.95) < P95_SECONDS * (1 if quiet else 10), said
