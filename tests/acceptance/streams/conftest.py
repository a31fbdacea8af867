"""One stack for the figures of the streams: agents of different paces, a Valkey that can be stopped and emptied; people
who follow turns with the client that users have, and keep book of what a stream promises."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import redis
import yaml

from perdure.client import AsyncClient, Event
from perdure.local.ports import free_port
from perdure.local.processes import valkey_server
from tests.acceptance.running import RunningStack, running
from tests.eventually import until

SLOW, BRISK, USUAL, AT_ONCE = "speaks_slowly", "speaks_briskly", "speaks_as_usual", "speaks_at_once"
PACES = {SLOW: 1.5, BRISK: 20.0, USUAL: 50.0, AT_ONCE: 0.0}
"""Tokens a second; 0 is all at once."""


class OwnValkey:
    """One server on one port, in memory alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"redis://127.0.0.1:{self._port}/0"

    def start(self) -> None:
        settings = ["--port", str(self._port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(
            [str(valkey_server()), *settings, "--dir", str(self._folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with self._client() as client:
            assert client.ping()

    def _client(self) -> "redis.Redis":
        """A connection that is tried until the server is there."""
        often = redis.retry.Retry(redis.backoff.ConstantBackoff(0.1), int(20.0 / 0.1))
        return redis.Redis.from_url(self.url, retry=often, retry_on_error=[redis.ConnectionError])

    def wipe(self) -> None:
        with self._client() as client:
            client.flushall()

    def kill(self) -> None:
        """Sends SIGKILL: later connections are refused."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


def write_speakers(folder: Path) -> None:
    """An app with an agent for each pace; `/echo TEXT` makes it say the text."""
    (folder / "agents").mkdir(parents=True)
    (folder / "scripts").mkdir()
    (folder / "app.yaml").write_text("name: speakers\ntitle: Agents that say what they are told to\n")
    for name, tokens_per_second in PACES.items():
        script = {"tokens_per_second": tokens_per_second, "rules": [], "fallback": "Say /echo and a text."}
        (folder / "scripts" / f"{name}.yaml").write_text(yaml.safe_dump(script))
        agent = {"id": name, "title": name, "topology": "skill_pipeline", "model": "scripted", "core_tools": False}
        agent |= {"script": f"../scripts/{name}.yaml", "limits": {"max_tokens": 1_000_000}}
        (folder / "agents" / f"{name}.yaml").write_text(yaml.safe_dump(agent))


@dataclass(frozen=True, slots=True)
class Speaking:
    """The stack, its Valkey, and the client that its users have."""

    stack: RunningStack
    valkey: OwnValkey
    client: AsyncClient


@pytest.fixture(scope="package")
def speaking_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningStack, OwnValkey]]:
    """`python -m perdure up` with `REDIS_URL`, in a data folder of its own."""
    folder: Path = tmp_path_factory.mktemp("streams")
    write_speakers(folder / "app")
    valkey = OwnValkey(folder)
    valkey.start()
    environ = {"PERDURE_LIVE_TURNS_PER_USER": "1000000", "REDIS_URL": valkey.url}
    try:
        with running(folder / "home", "--app", str(folder / "app"), **environ) as stack:
            yield stack, valkey
    finally:
        valkey.kill()


@pytest.fixture
async def speakers(speaking_stack: tuple[RunningStack, OwnValkey]) -> AsyncIterator[Speaking]:
    stack, valkey = speaking_stack
    async with AsyncClient(stack.api, stack.token("requester"), patience_seconds=120) as client:
        yield Speaking(stack, valkey, client)


@dataclass(slots=True)
class Followed:
    turn_id: str
    texts: dict[str, str] = field(default_factory=dict)
    """The text of each call, as a client puts it together: `reset` removes it."""
    words: list[str] = field(default_factory=list)
    """Every word that ever came in a token, also those that were taken back."""
    seqs: list[int] = field(default_factory=list)
    """The numbers of durable events, in the order in which they came."""
    resets: int = 0
    first_token_at: float | None = None
    """The time of the wall clock."""
    status: str = ""
    settled: dict[str, int] = field(default_factory=dict)
    """The number of characters in each call's `generation.complete`."""

    def take(self, event: Event) -> None:
        if event.kind == "token":
            self.first_token_at = self.first_token_at or time.time()
            text = str(event.data["text"])
            self.texts[event.call_id] = self.texts.get(event.call_id, "") + text
            self.words += text.split()
        elif event.kind == "reset":
            self.texts[event.call_id] = ""
            self.resets += 1
        elif event.kind == "workflow_complete":
            self.status = str(event.data["status"])
        elif event.kind != "thinking":
            self.seqs.append(int(event.data["seq"]))
            if event.kind == "generation.complete":
                self.settled[event.call_id] = int(event.data["characters"])

    @property
    def text(self) -> str:
        return next(reversed(self.texts.values()), "")

    def faults(self, answer: str) -> Iterator[str]:
        """Returns the differences from the promise; `answer` is the stored one."""
        if self.text != answer:
            yield f"{self.turn_id}: the reader has {len(self.text)} characters, the answer is {len(answer)} others"
        if self.seqs != list(range(1, len(self.seqs) + 1)):
            yield f"{self.turn_id}: durable events came as {self.seqs}"
        for call_id, characters in self.settled.items():
            if len(self.texts.get(call_id, "")) != characters:
                yield f"{self.turn_id}: {call_id} has {characters} characters, the reader others"


async def follow(client: AsyncClient, followed: Followed) -> Followed:
    """Read a turn's stream to its end, over as many connections as it takes."""
    async for event in client.turns.events(followed.turn_id):
        followed.take(event)
    return followed


class Readers(asyncio.TaskGroup):
    """Readers of turns; the block ends as the last of them has read its turn to the end."""

    def __init__(self, client: AsyncClient) -> None:
        super().__init__()
        self._client = client
        self.followed: list[Followed] = []

    def follow(self, ids: Sequence[str]) -> None:
        """One more for each of these turns."""
        for turn_id in ids:
            self.followed.append(Followed(turn_id))
            self.create_task(follow(self._client, self.followed[-1]))

    async def have_heard(self, words: int = 1) -> None:
        await until(lambda: all(len(each.words) >= words for each in self.followed), seconds=90.0)

    @property
    def mid_stream(self) -> int:
        return sum(bool(each.words) and not each.settled for each in self.followed)

    async def faults(self, texts: Sequence[str]) -> list[str]:
        """Returns the faults: each turn must complete with its text, and its reader must have the stored one."""
        found: list[str] = []
        for each, text in zip(self.followed, texts, strict=True):
            turn = await self._client.turns.get(each.turn_id)
            if (turn.status, turn.answer) != ("completed", text):
                found.append(f"{each.turn_id}: {turn.status} with another answer or none")
            found += each.faults(turn.answer or "")
        return found


async def begin(client: AsyncClient, agent: str, text: str) -> str:
    """Starts a turn with this text in a new conversation; returns its id."""
    conversation = await client.conversations.create(agent)
    return (await client.turns.start(conversation.id, f"/echo {text}")).turn_id


async def begin_all(client: AsyncClient, agent: str, texts: Sequence[str], *, at_once: int = 8) -> list[str]:
    """A turn for each text, a few requests at a time."""
    gate = asyncio.Semaphore(at_once)

    async def one(text: str) -> str:
        async with gate:
            return await begin(client, agent, text)

    return list(await asyncio.gather(*(one(text) for text in texts)))


def words(count: int, name: str) -> str:
    """A text of so many words, none like another, so that one lost or doubled is seen."""
    return " ".join(f"{name}-{number}" for number in range(count))
