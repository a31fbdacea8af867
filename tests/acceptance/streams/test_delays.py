"""Perdure's share of the first token's delay, and the time until a stop ends an answer. The provider is a double in
another process, reached by LiteLLM. One model streams a word every 0.7 s: its own next word would be too late a
stop."""

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from perdure.client import AsyncClient
from perdure.local.ports import free_port
from tests.acceptance.counted_model import COUNTED, KEY_ENVIRON, write_app
from tests.acceptance.machine import LOADED, Others, quantile
from tests.acceptance.running import ROOT, running
from tests.acceptance.streams.conftest import SLOW, USUAL, Followed, Speaking, begin, follow, words
from tests.scale import FULL, PATIENCE_SECONDS, sized

pytestmark = [pytest.mark.soak, pytest.mark.timeout(PATIENCE_SECONDS)]

TURNS = sized(200, 12)
WARM_UP = sized(20, 4)
PROVIDER_SECONDS = 0.2
"""Seconds until the double's first byte."""
P50_SECONDS, P95_SECONDS = 0.015, 0.040
TIMES = {"first_byte_seconds": PROVIDER_SECONDS, "token_seconds": 0.03, "times": None}
STEP = {"text": "A first token, and then some more of them.", **TIMES}
STOPS = sized(100, 8)
"""Turns of each pace."""
STOPPED_WORDS = 400


@dataclass(frozen=True, slots=True)
class Added:
    spoken: float
    """Seconds from the provider's first word on the wire to the client's first token."""
    asked: float
    """Seconds from the turn's request to the client's first token, without the provider's delay."""


def percentiles(name: str, seconds: list[float]) -> str:
    return f"{name} p50 {quantile(seconds, 0.5) * 1e3:.1f} ms, p95 {quantile(seconds, 0.95) * 1e3:.1f} ms"


@contextmanager
def provider(folder: Path) -> Iterator[str]:
    port, script = free_port(), folder / "steps.yaml"
    script.write_text(yaml.safe_dump([STEP]))
    arguments = ["--port", str(port), "--script", str(script)]
    process = subprocess.Popen([sys.executable, "-m", "tests.doubles.providers.server", *arguments], cwd=ROOT)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
async def model_client(tmp_path: Path) -> AsyncIterator[tuple[AsyncClient, str]]:
    """A client of a stack whose agent asks the double, and the double's address."""
    with provider(tmp_path) as address:
        write_app(tmp_path / "app", f"{address}/v1")
        with running(tmp_path / "home", "--app", str(tmp_path / "app"), **KEY_ENVIRON) as stack:
            async with AsyncClient(stack.api, stack.token("requester")) as client:
                yield client, address


async def first_token(client: AsyncClient, address: str) -> Added:
    conversation = await client.conversations.create(COUNTED)
    asked = time.time()
    turn_id = (await client.turns.start(conversation.id, "Say something.")).turn_id
    followed = await follow(client, Followed(turn_id))
    assert followed.text == STEP["text"] and followed.first_token_at is not None
    async with httpx.AsyncClient() as looking:
        seen = (await looking.get(f"{address}/_requests")).json()
        await looking.delete(f"{address}/_requests")
    (request,) = [each for each in seen if each["idempotency_key"].startswith(turn_id)]
    own = request["spoke_at"] - request["received_at"]
    return Added(followed.first_token_at - request["spoke_at"], followed.first_token_at - asked - own)


async def test_the_first_token_is_hardly_delayed_from_provider_to_reader(model_client: tuple[AsyncClient, str]) -> None:
    for _ in range(WARM_UP):
        await first_token(*model_client)
    with Others() as others:
        added = [await first_token(*model_client) for _ in range(TURNS)]
    spoken, whole = [each.spoken for each in added], [each.asked for each in added]
    summary = f"{percentiles('added to the first token', spoken)}; {percentiles('whole turn until it', whole)}"
    print(f"\n{TURNS} turns: {summary}; others {others.share:.0%} of the machine")
    quiet = FULL or others.share < LOADED
    assert quantile(spoken, 0.5) < P50_SECONDS * (1 if quiet else 10), summary
    assert quantile(spoken, 0.95) < P95_SECONDS * (1 if quiet else 10), summary


async def stopped(client: AsyncClient, agent: str, name: str, wait_seconds: float) -> tuple[float, Followed]:
    """The seconds that a stop in the middle of an answer took, and its reader's text."""
    followed = Followed(await begin(client, agent, words(STOPPED_WORDS, name)))
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


async def test_a_stop_ends_an_answer_at_once_and_keeps_its_text(speakers: Speaking) -> None:
    chance, took = random.Random(7), dict[str, list[float]]()
    await stopped(speakers.client, USUAL, "warm", 0.1)
    with Others() as others:
        for number in range(STOPS):
            for agent in (SLOW, USUAL):
                seconds, followed = await stopped(speakers.client, agent, f"s{number}", chance.random() * 0.6)
                took.setdefault(agent, []).append(seconds)
                turn = await speakers.client.turns.get(followed.turn_id)
                assert (turn.status, followed.status, turn.answer) == ("stopped", "stopped", followed.text)
                assert 0 < len(followed.words) < STOPPED_WORDS
    summary = "; ".join(percentiles(agent, each) for agent, each in took.items())
    print(f"\nstop to done, {STOPS} turns each: {summary}; others {others.share:.0%} of the machine")
    quiet = FULL or others.share < LOADED
    for each in took.values():
        assert quantile(each, 0.95) < 0.5 * (1 if quiet else 10), summary
