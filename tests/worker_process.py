"""A worker in a process of its own, to be killed: it says on its output how far it is."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from perdure.contracts.turns import Kind
from perdure.local import DataParts
from tests.conftest import Urls

START_SECONDS = 60


@asynccontextmanager
async def worker_process(
    kind: Kind, urls: Urls, parts: DataParts, queue: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`tests.doubles.killed_worker` on this queue, once it serves; it is killed at the end."""
    assert parts.redis_url is not None and parts.temporal is not None
    where = (urls.app, parts.redis_url, parts.temporal.address, parts.temporal.namespace, queue)
    command = (sys.executable, "-m", "tests.doubles.killed_worker", kind.value, *where)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        await wait_for_word(process, b"serving")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def wait_for_word(process: asyncio.subprocess.Process, word: bytes) -> None:
    assert process.stdout is not None
    async with asyncio.timeout(START_SECONDS):
        while (line := await process.stdout.readline()).strip() != word:
            assert line, "the worker is gone"
