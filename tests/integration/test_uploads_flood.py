"""Floods of files at an API process: its memory stays small, others are answered, and what is hostile is a refusal."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import httpx
import psutil
import pytest

from perdure.local import DataParts
from perdure.store.database import new_id
from tests.conftest import Person, Urls
from tests.eventually import until
from tests.integration.test_api_process import ApiProcess, client_of, served_with

MIB = 2**20
ROW = b"12345,north,2024-01-01,some words of a row that is like any other\n"
TABLE = b"number,region,day,words\n" + ROW * ((20 * MIB - 24) // len(ROW))


@dataclass
class Seen:
    """What was measured while something else went on."""

    first_bytes: int
    most_bytes: int = 0
    seconds: list[float] = field(default_factory=list)

    @property
    def grown_mib(self) -> float:
        return (self.most_bytes - self.first_bytes) / MIB

    @property
    def p95(self) -> float:
        return sorted(self.seconds)[int(len(self.seconds) * 0.95)]


@asynccontextmanager
async def watched(api_process: ApiProcess, person: Person) -> AsyncIterator[Seen]:
    """Look at the process and its children twenty times a second, and ask it something as another person would."""
    assert api_process.process is not None
    process = psutil.Process(api_process.process.pid)
    seen = Seen(process.memory_info().rss)

    async def weigh() -> None:
        while True:
            total = process.memory_info().rss
            for child in process.children(recursive=True):
                with suppress(psutil.Error):
                    total += child.memory_info().rss
            seen.most_bytes = max(seen.most_bytes, total)
            await asyncio.sleep(0.02)

    async def ask() -> None:
        async with client_of(api_process, person) as client:
            while True:
                began = time.monotonic()
                (await client.get("/v1/auth/me")).raise_for_status()
                seen.seconds.append(time.monotonic() - began)
                await asyncio.sleep(0.05)

    tasks = [asyncio.create_task(weigh()), asyncio.create_task(ask())]
    await until(lambda: len(seen.seconds) > 3)
    try:
        yield seen
    finally:
        for task in tasks:
            task.cancel()
        failed = [each for each in await asyncio.gather(*tasks, return_exceptions=True) if isinstance(each, Exception)]
        assert not failed, failed


@pytest.fixture(scope="module")
async def api_process(
    parts: DataParts, urls: Urls, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ApiProcess]:
    home = str(tmp_path_factory.mktemp("home"))
    unlimited = {"PERDURE_BYTES_PER_USER": "0", "PERDURE_BYTES_PER_CONVERSATION": "0"}
    async with served_with(parts, urls, PERDURE_HOME=home, **unlimited) as running:
        yield running


async def new_conversation(client: httpx.AsyncClient) -> str:
    made = await client.post("/v1/conversations", json={"agent": "chart_builder"})
    return f"/v1/conversations/{made.json()['id']}/files"


async def send(client: httpx.AsyncClient, path: str, content: bytes, kind: str = "text/csv") -> tuple[int, str]:
    head, named = {"Content-Type": kind}, {"name": "a.csv"}
    sent = await client.post(path, params=named, content=content, headers=head, timeout=180)
    return sent.status_code, sent.json().get("error", {}).get("code", "")


@pytest.mark.soak
@pytest.mark.timed
async def test_16_files_of_20_mib_at_once_spare_memory_and_others(
    api_process: ApiProcess, people: dict[str, Person]
) -> None:
    """Before uploads went to the disk, the process grew by 1,166 MiB and others waited for 2 s (p95)."""
    async with client_of(api_process, people["requester"]) as client:
        path, other = await new_conversation(client), await new_conversation(client)
        async with watched(api_process, people["admin"]) as seen:
            answers = await asyncio.gather(*(send(client, each, TABLE) for each in (path, other) for _ in range(8)))
        assert [status for status, _ in answers] == [201] * 16
        assert seen.grown_mib < 200, seen
        assert seen.p95 < 1.5, seen
        (newest,) = (await client.get(path, params={"limit": 1})).json()["items"]
        async with watched(api_process, people["admin"]) as seen:
            found = await asyncio.gather(*(client.get(newest["content"]) for _ in range(8)))
        assert all(each.content == TABLE for each in found)
        assert seen.grown_mib < 100, seen
        page, file = f"/chat/{path.split('/')[3]}/files", {"file": ("a.csv", TABLE, "text/csv")}
        async with watched(api_process, people["admin"]) as seen:
            forms = ({"key": new_id()} for _ in range(8))
            posts = (client.post(page, data=each, files=file, timeout=180) for each in forms)
            assert [each.status_code for each in await asyncio.gather(*posts)] == [303] * 8
        assert seen.grown_mib < 200, "forms of pages go by the disk as well"


async def test_a_user_has_a_maximum_of_simultaneous_uploads(api_process: ApiProcess, people: dict[str, Person]) -> None:
    async def slowly() -> AsyncIterator[bytes]:
        yield b"a,b\n"
        await asyncio.sleep(1.5)
        yield b"1,2\n"

    async with client_of(api_process, people["requester"]) as client:
        path = await new_conversation(client)

        async def upload() -> httpx.Response:
            head = {"Content-Type": "text/csv"}
            return await client.post(path, params={"name": "a.csv"}, content=slowly(), headers=head)

        answers = await asyncio.gather(*(upload() for _ in range(17)))
        assert sorted(answer.status_code for answer in answers) == [201] * 16 + [429]
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.json()["error"]["code"] == "too_many_uploads"
        assert refused.headers["retry-after"] == "15"
        assert (await upload()).status_code == 201, "the others are over, and count no more"


async def test_a_file_too_large_is_refused_with_or_without_a_length(
    api_process: ApiProcess, people: dict[str, Person]
) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b"x" * MIB

    async with client_of(api_process, people["requester"]) as client:
        path = await new_conversation(client)
        for given in (endless(), b"x" * (21 * MIB)):
            head = {"Content-Type": "text/plain"}
            sent = await client.post(path, params={"name": "a.txt"}, content=given, headers=head)
            error = sent.json()["error"]
            assert (sent.status_code, error["code"]) == (413, "too_large")
            assert error["details"] == {"limit_bytes": 20 * MIB, "variable": "PERDURE_UPLOAD_BYTES"}
        assert (await client.get(path)).json()["items"] == []


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "a million columns": (
        lambda: b",".join(b"c%d" % n for n in range(1_000_000)) + b"\n" + b",".join([b"1"] * 1_000_000),
        "table_too_large",
    ),
    "a row of ten million cells": (lambda: b"a,b\n" + b"," * 10_000_000, "table_broken"),
    "a row of a million texts": (lambda: b"a,b\n" + b"abcdefgh," * (2 * MIB), "table_too_costly"),
    "a quote that never ends": (lambda: b'a,b\n1,"' + b"x" * (20 * MIB - 10), "table_broken"),
    "a line that never ends": (lambda: b"a" * (20 * MIB), "table_broken"),
    "wide characters": (lambda: b"a,b\n" + "1,\U0001f600\n".encode() * (2 * MIB), "table_too_large"),
    "a wide line that never ends": (lambda: "\U0001f600".encode() * (5 * MIB), "table_broken"),
    "short rows": (lambda: b"a\n" + b"1\n" * (10 * MIB - 10), "table_too_large"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "a million columns" else pytest.mark.soak) for name in HOSTILE]
)
async def test_hostile_tables_are_refused_and_delay_none(
    api_process: ApiProcess, people: dict[str, Person], name: str
) -> None:
    """Before, eight of them took 900 MiB in the API itself, and a request of others waited for 0.6 s."""
    make, code = HOSTILE[name]
    content = make()
    async with client_of(api_process, people["requester"]) as client:
        path = await new_conversation(client)
        async with watched(api_process, people["admin"]) as seen:
            answers = await asyncio.gather(*(send(client, path, content) for _ in range(8)))
        assert answers == [(422, code)] * 8
        assert seen.grown_mib < 360, seen  # two processes of 128 MiB at most, beside what the API buffers
        assert (await client.get(path)).json()["items"] == []


async def test_a_killed_check_refuses_its_file_and_is_no_outage(
    api_process: ApiProcess, people: dict[str, Person]
) -> None:
    assert api_process.process is not None
    process, killed = psutil.Process(api_process.process.pid), 0

    async def kill() -> None:
        nonlocal killed
        while True:
            for child in process.children():
                with suppress(psutil.Error):
                    child.kill()
                    killed += 1
            await asyncio.sleep(0.005)

    async with client_of(api_process, people["requester"]) as client:
        path = await new_conversation(client)
        killing = asyncio.create_task(kill())
        try:
            assert await send(client, path, TABLE) == (422, "table_too_costly")
        finally:
            killing.cancel()
        assert killed
        assert await send(client, path, TABLE) == (201, "")
