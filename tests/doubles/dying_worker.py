"""A turns worker in a process of its own that says when it ends a turn and hangs there, to be killed.

`python -m tests.doubles.dying_worker DATABASE_URL REDIS_URL TEMPORAL_ADDRESS NAMESPACE QUEUE`
"""

import asyncio
import sys
from contextlib import AsyncExitStack

from temporalio.client import Client

from perdure.activities.dependencies import Deps
from perdure.activities.providers.registry import Models
from perdure.activities.toolbox.registry import Toolbox
from perdure.contracts.turns import Kind
from perdure.settings import Settings
from perdure.store.database import Database
from perdure.store.events.live import LiveTokens
from perdure.store.valkey import Valkey
from perdure.temporal.client import DATA_CONVERTER
from perdure.temporal.workflow_client import Notifier
from perdure.worker.queues import workers_for
from tests.doubles.broken_inside import Breaks, broken_inside
from tests.harness import until
from tests.near import new_client


async def _main(database: str, redis: str, temporal: str, namespace: str, queue: str) -> None:
    async with AsyncExitStack() as stack:
        db = await Database.connect(database, most=4, keyring=Settings(_env_file=None).keyring())
        client = await Client.connect(temporal, namespace=namespace, data_converter=DATA_CONVERTER)
        http = await stack.enter_async_context(new_client())
        toolbox = Toolbox([], lambda name: None, http)
        deps = Deps(db, LiveTokens(Valkey.connect(redis)), toolbox, Models(lambda name: None), Notifier(client, db))
        for worker in workers_for(deps, Kind.TURNS, queue):
            await stack.enter_async_context(worker)
        with broken_inside(Breaks.HANGS) as broken:
            print("serving", flush=True)
            await until(lambda: bool(broken), seconds=60)
            print("ending", flush=True)
            await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
