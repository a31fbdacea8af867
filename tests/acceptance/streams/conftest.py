"""One stack for the figures of the streams: agents of different paces, a Valkey that can be stopped and emptied."""

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
import yaml

from perdure.client import AsyncClient
from perdure.local.ports import free_port
from perdure.local.processes import valkey_server
from tests.acceptance.running import RunningStack, running

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
