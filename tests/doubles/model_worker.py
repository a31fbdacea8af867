"""A model worker in a process of its own, to be killed. Its model says what the user's message tells it to.

`python -m tests.doubles.model_worker DATABASE_URL REDIS_URL TEMPORAL_ADDRESS NAMESPACE QUEUE`
"""

import asyncio
import sys
from contextlib import AsyncExitStack

from temporalio.client import Client

from perdure.activities.dependencies import Deps
from perdure.activities.toolbox.registry import Toolbox
from perdure.contracts.turns import Kind
from perdure.store.database import Database
from perdure.store.events.live import LiveTokens
from perdure.store.valkey import Valkey
from perdure.temporal.client import DATA_CONVERTER
from perdure.temporal.workflow_client import Notifier
from perdure.worker.queues import workers_for
from tests.doubles.spoken import SpokenModel, SpokenModels
from tests.near import new_client


async def _main(database: str, redis: str, temporal: str, namespace: str, queue: str) -> None:
    async with AsyncExitStack() as stack:
        db = await Database.connect(database, most=12, plan_once=True)
        client = await Client.connect(temporal, namespace=namespace, data_converter=DATA_CONVERTER)
        http = await stack.enter_async_context(new_client())
        toolbox, models = Toolbox([], lambda name: None, http), SpokenModels(SpokenModel())
        deps = Deps(db, LiveTokens(Valkey.connect(redis)), toolbox, models, Notifier(client, db))
        for worker in workers_for(deps, Kind.LLM, queue):
            await stack.enter_async_context(worker)
        print("serving", flush=True)
        await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
