"""A worker in its own process that serves one queue, prints a line when it does, and is killed.
`python -m tests.doubles.<worker> DATABASE_URL REDIS_URL TEMPORAL_ADDRESS NAMESPACE QUEUE`"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
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
from tests.local_egress import new_client


def nothing(name: str) -> None:
    """No secret has a value."""


async def say(word: str) -> None:
    """Say it and hang."""
    print(word, flush=True)
    await asyncio.sleep(3600)


def serve(
    kind: Kind,
    *,
    models: Models | None = None,
    then: Callable[[], Awaitable[None]] = lambda: say("serving"),
) -> None:
    asyncio.run(_serve(kind, sys.argv[1:], models or Models(nothing), then))


async def _serve(kind: Kind, where: Sequence[str], models: Models, then: Callable[[], Awaitable[None]]) -> None:
    database, redis, temporal, namespace, queue = where
    async with AsyncExitStack() as stack:
        db = await Database.connect(
            database, max_connections=12, plan_once=True, keyring=Settings(_env_file=None).keyring()
        )
        client = await Client.connect(temporal, namespace=namespace, data_converter=DATA_CONVERTER)
        http = await stack.enter_async_context(new_client())
        deps = Deps(db, LiveTokens(Valkey.connect(redis)), Toolbox([], nothing, http), models, Notifier(client, db))
        for worker in workers_for(deps, kind, queue):
            await stack.enter_async_context(worker)
        await then()
