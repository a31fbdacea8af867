"""`python -m perdure.api` as a process: it drains at once and can be killed; its readers reconnect to the next one."""

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from perdure.api.__main__ import DRAIN_SECONDS, server_config
from perdure.api.app import create_app
from perdure.local import DataParts
from perdure.local.ports import free_port, is_free
from perdure.settings import Settings
from tests.conftest import Person, Urls
from tests.eventually import until
from tests.integration.test_sse_resume import reading
from tests.integration.turn_writer import Sent, TurnWriter, text_of

ROOT = Path(__file__).parents[2]
READERS = 25


@dataclass
class ApiProcess:
    """The API process, which can be ended and started again on the same port."""

    environ: dict[str, str]
    url: str
    process: Process | None = None

    async def start(self) -> None:
        command = (sys.executable, "-m", "perdure.api")
        self.process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=self.environ)
        async with httpx.AsyncClient(base_url=self.url) as client:

            async def is_ready() -> bool:
                assert self.process is not None and self.process.returncode is None, "the API did not start"
                return (await client.get("/readyz")).status_code == 200

            await until(is_ready, every=0.1, despite=(httpx.TransportError,))

    async def end(self, number: signal.Signals) -> float:
        assert self.process is not None
        began = time.monotonic()
        if self.process.returncode is None:
            self.process.send_signal(number)
        await asyncio.wait_for(self.process.wait(), 20)
        return time.monotonic() - began


def first_metrics_port() -> int:
    """A number whose ports for the API's metrics (+ 12) and its Temporal client's (+ 13) are free."""
    for _ in range(50):
        first = free_port()
        if is_free(first + 12) and is_free(first + 13):
            return first
    raise AssertionError("no free pair of ports")


def environment(parts: DataParts, urls: Urls, port: int, **given: str) -> dict[str, str]:
    assert parts.redis_url is not None and parts.temporal is not None
    return {
        **os.environ, "DATABASE_URL": urls.app, "REDIS_URL": parts.redis_url,
        "TEMPORAL_ADDRESS": parts.temporal.address, "TEMPORAL_NAMESPACE": parts.temporal.namespace,
        "TEMPORAL_CONFIG_FILE": os.devnull, "PERDURE_PORT": str(port), "LOG_LEVEL": "warning",
        "RATE_LIMITING_ENABLED": "0", **given,
    }  # fmt: skip


@asynccontextmanager
async def served_with(parts: DataParts, urls: Urls, **given: str) -> AsyncIterator[ApiProcess]:
    port = free_port()
    running = ApiProcess(environment(parts, urls, port, **given), f"http://127.0.0.1:{port}")
    await running.start()
    try:
        yield running
    finally:
        await running.end(signal.SIGKILL)


@pytest.fixture
async def api_process(parts: DataParts, urls: Urls) -> AsyncIterator[ApiProcess]:
    async with served_with(parts, urls) as running:
        yield running


def client_of(api_process: ApiProcess, person: Person) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=READERS + 5)
    head = {"Authorization": f"Bearer {person.token}"}
    return httpx.AsyncClient(base_url=api_process.url, headers=head, timeout=20, limits=limits)


async def follow(client: httpx.AsyncClient, path: str) -> list[Sent]:
    """Read to the end, coming back with the last id whenever the stream breaks."""
    got: list[Sent] = []
    async with asyncio.timeout(60):
        while not got or got[-1].kind != "workflow_complete":
            after = next((event.id for event in reversed(got) if event.id), None)
            try:
                async with reading(client, path, after) as stream:
                    try:
                        await stream.whole()
                    finally:
                        got += stream.sent
            except httpx.TransportError:
                await asyncio.sleep(0.1)
    return got


@pytest.mark.timed
@pytest.mark.parametrize("end", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.soak)])
async def test_readers_do_not_delay_a_drain_and_resume_without_gaps_or_repeats(
    api_process: ApiProcess, turn: TurnWriter, people: dict[str, Person], end: signal.Signals
) -> None:
    path = f"/v1/turns/{turn.address.turn_id}/events"
    async with client_of(api_process, people["requester"]) as client:
        readers = [asyncio.create_task(follow(client, path)) for _ in range(READERS)]
        await turn.claim("m1")
        text = ""
        for number in range(60):
            if number == 20:
                assert await api_process.end(end) < DRAIN_SECONDS
            if number == 40:
                await api_process.start()
            await turn.speak("m1", f"{number} ")
            text += f"{number} "
            await asyncio.sleep(0.02)
        await turn.settle("m1", text)
        await turn.finish()
        for sent in await asyncio.gather(*readers):
            assert text_of(sent) == text
            durable = [event.data["seq"] for event in sent if event.kind not in ("token", "workflow_complete")]
            assert durable == list(range(1, len(durable) + 1)), "no event twice, none missing, no reset needed"


def test_a_host_setting_that_opens_the_port_too_far_is_refused_by_name() -> None:
    hosts = [("PERDURE_HOST", "0.0.0.0"), ("PERDURE_HOST", "::")]
    for name, value in (*hosts, ("PERDURE_ALLOWED_HOSTS", "https://a.example"), ("PERDURE_PROXIES", "proxy.example")):
        settings = Settings(_env_file=None, **{name: value})  # type: ignore[arg-type]
        with pytest.raises(SystemExit) as refused:
            server_config(create_app(settings), settings)
        assert name in str(refused.value) and value in str(refused.value)


async def test_the_process_bounds_heads_and_connections_and_serves_its_metrics(parts: DataParts, urls: Urls) -> None:
    first = first_metrics_port()
    given = {"PERDURE_CONNECTIONS_PER_ADDRESS": "20", "PERDURE_METRICS_PORT": str(first), "FORWARDED_ALLOW_IPS": "*"}
    async with served_with(parts, urls, **given) as running:
        async with httpx.AsyncClient() as client:
            metrics = await client.get(f"http://127.0.0.1:{first + 12}/metrics")
            assert metrics.status_code == 200 and "perdure_front_door_total" in metrics.text
            assert "temporal_" in (await client.get(f"http://127.0.0.1:{first + 13}/metrics")).text
            assert (await client.get(f"{running.url}/metrics")).status_code == 401
            assert (await client.get(f"{running.url}/healthz", headers={"Host": "evil.example"})).status_code == 200
            assert (await client.get(f"{running.url}/sign-in", headers={"Host": "evil.example"})).status_code == 421
        wires = [await asyncio.open_connection("127.0.0.1", httpx.URL(running.url).port) for _ in range(25)]
        began = time.monotonic()
        heads = await asyncio.gather(*(reader.read() for reader, _ in wires))
        took = time.monotonic() - began
        for _, writer in wires:
            writer.close()
        assert sum(b"too_many_connections" in head for head in heads) >= 5
        assert 8 < took < 14, "a connection that sends nothing is closed after ten seconds"
