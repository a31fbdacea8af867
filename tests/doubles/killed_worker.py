"""A worker in its own process that serves one queue, prints a line when it does, and is killed.
`python -m tests.doubles.killed_worker KIND DATABASE_URL REDIS_URL TEMPORAL_ADDRESS NAMESPACE QUEUE`: one of the models
says what the user's message tells it to, one of turns says when it ends a turn and hangs there."""

import asyncio
import sys
from contextlib import AsyncExitStack

from temporalio.client import Client

from perdure.activities.dependencies import Deps
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
from tests.doubles.message_script import MessageScriptModel, MessageScriptModels
from tests.eventually import until
from tests.local_egress import new_client


async def say(word: str) -> None:
    """Say it and hang."""
    print(word, flush=True)
    await asyncio.sleep(3600)


async def serve(kind: Kind, database: str, redis: str, temporal: str, namespace: str, queue: str) -> None:
    models = MessageScriptModels(MessageScriptModel())
    async with AsyncExitStack() as stack:
        db = await Database.connect(
            database, max_connections=12, plan_once=True, keyring=Settings(_env_file=None).keyring()
        )
        client = await Client.connect(temporal, namespace=namespace, data_converter=DATA_CONVERTER)
        http = await stack.enter_async_context(new_client())
        deps = Deps(
            db, LiveTokens(Valkey.connect(redis)), Toolbox([], lambda name: None, http), models, Notifier(client, db)
        )
        for worker in workers_for(deps, kind, queue):
            await stack.enter_async_context(worker)
        if kind is Kind.LLM:
            await say("serving")
        with broken_inside(Breaks.HANGS) as broken:
            print("serving", flush=True)
            await until(lambda: bool(broken), seconds=60)
            await say("ending")


if __name__ == "__main__":
    asyncio.run(serve(Kind(sys.argv[1]), *sys.argv[2:]))
