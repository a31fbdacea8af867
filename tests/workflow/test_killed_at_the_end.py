"""A turn ends inside a workflow task: a worker that is killed there holds it up for no longer than the task's time."""

import time
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from temporalio.client import Client

from perdure.contracts.turns import Kind, Routing, TurnStatus
from perdure.local import DataParts
from perdure.store.database import new_id
from tests.conftest import Urls
from tests.desk import Desk
from tests.doubles.spoken import Line
from tests.served import ALL_KINDS, Served, serve
from tests.worker_process import said, worker_process

RECOVERY_SECONDS = 8.0


@pytest.mark.timed
async def test_a_turn_whose_worker_is_killed_while_it_ends_it_ends_soon_elsewhere(
    desk: Desk, temporal: Client, urls: Urls, parts: DataParts
) -> None:
    own = new_id()[-8:]
    at = replace(desk, routing=Routing(**{kind.value: f"{Routing.spread().queue(kind)}-{own}" for kind in Kind}))
    served = Served(at, temporal)
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
