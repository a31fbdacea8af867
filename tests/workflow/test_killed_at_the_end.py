"""A turn ends inside a workflow task: a worker that is killed there holds it up for no longer than the task's time."""

import time
from contextlib import AsyncExitStack

import pytest
from temporalio.client import Client

from perdure.contracts.turns import Kind, Routing, TurnStatus
from perdure.local import DataParts
from tests.conftest import Urls
from tests.desk import Desk
from tests.doubles.spoken import Line
from tests.served import ALL_KINDS, apart, serve
from tests.worker_process import said, worker_process

RECOVERY_SECONDS = 8.0


@pytest.mark.timed
async def test_a_turn_whose_worker_is_killed_while_it_ends_it_ends_soon_elsewhere(
    desk: Desk, temporal: Client, urls: Urls, parts: DataParts
) -> None:
    served = apart(desk, temporal, Routing.spread())
    at = served.desk
    async with AsyncExitStack() as stack:
        await serve(stack, at, tuple(kind for kind in ALL_KINDS if kind is not Kind.TURNS))
        async with worker_process("dying_worker", urls, parts, at.routing.turns) as process:
            address = await served.begin(Line("well"))
            await said(process, b"ending")
            process.kill()
        killed = time.monotonic()
        await serve(stack, at, (Kind.TURNS,))
        row = await served.until(address, TurnStatus.COMPLETED)
        assert time.monotonic() - killed < RECOVERY_SECONDS
    assert row["answer"] == "well"
    assert (await at.kinds(address.turn_id)).count("done") == 1
