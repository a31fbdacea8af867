"""A turn ends inside a workflow task: a worker that is killed there holds it up for no longer than the task's time."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from temporalio.client import Client

from contracts.turns import Kind, Routing, TurnStatus
from local import DataParts
from store.ids import new_id
from tests.conftest import Urls
from tests.desk import Desk
from tests.doubles.spoken import Line
from tests.served import ALL_KINDS, Served, serve

RECOVERY_SECONDS = 8.0


@asynccontextmanager
async def dying_worker(urls: Urls, parts: DataParts, queue: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A turns worker that will hang in its first end of a turn; it serves."""
    assert parts.redis_url is not None and parts.temporal is not None
    where = (urls.app, parts.redis_url, parts.temporal.address, parts.temporal.namespace, queue)
    command = (sys.executable, "-m", "tests.doubles.dying_worker", *where)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        await said(process, b"serving")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def said(process: asyncio.subprocess.Process, word: bytes) -> None:
    """Read until the worker says `word`."""
    assert process.stdout is not None
    async with asyncio.timeout(30):
        while (line := await process.stdout.readline()).strip() != word:
            assert line, "the worker is gone"


async def test_a_turn_whose_worker_is_killed_while_it_ends_it_ends_soon_elsewhere(
    desk: Desk, temporal: Client, urls: Urls, parts: DataParts
) -> None:
    own = new_id()[-8:]
    at = replace(desk, routing=Routing(**{kind.value: f"{Routing.spread().queue(kind)}-{own}" for kind in Kind}))
    served = Served(at, temporal)
    async with AsyncExitStack() as stack:
        await serve(stack, at, tuple(kind for kind in ALL_KINDS if kind is not Kind.TURNS))
        async with dying_worker(urls, parts, at.routing.turns) as process:
            address = await served.begin(Line("well"))
            await said(process, b"ending")
            process.kill()
        killed = time.monotonic()
        await serve(stack, at, (Kind.TURNS,))
        row = await served.until(address, TurnStatus.COMPLETED)
        assert time.monotonic() - killed < RECOVERY_SECONDS
    assert row["answer"] == "well"
    assert (await at.kinds(address.turn_id)).count("done") == 1
