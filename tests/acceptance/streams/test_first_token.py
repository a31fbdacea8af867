"""What the first token's way through Perdure adds to the provider's own delay: LiteLLM over HTTP, a double that speaks
the wire format in a process of its own, real stores and a client over HTTP."""

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
from tests.acceptance.counted_model import COUNTED, KEY_ENVIRON, write_app
from tests.acceptance.machine import Others
from tests.acceptance.running import ROOT, RunningStack, free_port, running
from tests.acceptance.streams.following import Followed, follow
from tests.acceptance.test_figures import LOADED, quantile
from tests.scale import FULL, PATIENCE_SECONDS, sized

pytestmark = pytest.mark.soak

TURNS = sized(200, 12)
WARM_UP = sized(20, 4)
PROVIDER_SECONDS = 0.2
"""Until the double's first byte."""
P50_SECONDS, P95_SECONDS = 0.015, 0.040
STEP = {
    "text": "A first token, and then some more of them.",
    "first_byte_seconds": PROVIDER_SECONDS,
    "token_seconds": 0.03,
    "times": None,
}


@dataclass(frozen=True, slots=True)
class Added:
    spoken: float
    """From the provider's first word on the wire to the client's first token."""
    asked: float
    """From the request for the turn to the client's first token, without the provider's own delay."""


@contextmanager
def provider(folder: Path) -> Iterator[str]:
    port, script = free_port(), folder / "steps.yaml"
    script.write_text(yaml.safe_dump([STEP]))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.doubles.provider", "--port", str(port), "--script", str(script)], cwd=ROOT
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningStack, str]]:
    """A stack whose agent asks the double, and the double's address."""
    folder = tmp_path_factory.mktemp("first_token")
    with provider(folder) as address:
        write_app(folder / "app", f"{address}/v1")
        with running(folder / "home", "--app", str(folder / "app"), **KEY_ENVIRON) as stack:
            yield stack, address


@pytest.fixture
async def client(heard: tuple[RunningStack, str]) -> AsyncIterator[AsyncClient]:
    stack, _ = heard
    async with AsyncClient(stack.api, stack.token("requester")) as opened:
        yield opened


async def _one(client: AsyncClient, address: str) -> Added:
    conversation = await client.conversations.create(COUNTED)
    asked = time.time()
    turn_id = (await client.turns.start(conversation.id, "Say something.")).turn_id
    followed = await follow(client, turn_id, Followed(turn_id))
    assert followed.text == STEP["text"] and followed.first_token_at is not None
    async with httpx.AsyncClient() as looking:
        seen = (await looking.get(f"{address}/_requests")).json()
        await looking.delete(f"{address}/_requests")
    (request,) = [each for each in seen if each["idempotency_key"].startswith(turn_id)]
    own = request["spoke_at"] - request["received_at"]
    return Added(followed.first_token_at - request["spoke_at"], followed.first_token_at - asked - own)


async def _measured(client: AsyncClient, address: str, count: int) -> list[Added]:
    return [await _one(client, address) for _ in range(count)]


def _told(name: str, seconds: list[float]) -> str:
    ordered = sorted(seconds)
    return f"{name} p50 {quantile(ordered, 0.5) * 1e3:.1f} ms, p95 {quantile(ordered, 0.95) * 1e3:.1f} ms"


@pytest.mark.timeout(PATIENCE_SECONDS)
async def test_the_first_token_is_hardly_delayed_on_its_way_from_provider_to_reader(
    heard: tuple[RunningStack, str], client: AsyncClient
) -> None:
    await _measured(client, heard[1], WARM_UP)
    with Others() as others:
        added = await _measured(client, heard[1], TURNS)
    spoken = sorted(each.spoken for each in added)
    said = f"{_told('added to the first token', spoken)}; {_told('whole turn until it', [e.asked for e in added])}"
    print(f"\n{TURNS} turns: {said}; others {others.share:.0%} of the machine")
    quiet = FULL or others.share < LOADED
    assert quantile(spoken, 0.5) < P50_SECONDS * (1 if quiet else 10), said
    assert quantile(spoken, 0.95) < P95_SECONDS * (1 if quiet else 10), said
