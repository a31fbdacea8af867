"""A worker of the examples' tools in a process of its own, their servers included, to be killed.

`SERVERS_HOME=FOLDER python -m tests.doubles.tools_worker DATABASE_URL REDIS_URL TEMPORAL_ADDRESS NAMESPACE QUEUE`
"""

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from temporalio.client import Client

from perdure.activities.dependencies import Deps
from perdure.activities.providers.registry import Models
from perdure.activities.toolbox.mcp.tools import McpServers
from perdure.activities.toolbox.registry import Toolbox
from perdure.apps import app_folders, find_apps
from perdure.contracts.turns import Kind
from perdure.settings import Settings
from perdure.store.database import Database
from perdure.store.events.live import LiveTokens
from perdure.store.valkey import Valkey
from perdure.temporal.client import DATA_CONVERTER
from perdure.temporal.workflow_client import Notifier
from perdure.worker.queues import tools_of, workers_for
from tests.near import new_client


def _none(name: str) -> str | None:
    return None


async def _main(database: str, redis: str, temporal: str, namespace: str, queue: str) -> None:
    async with AsyncExitStack() as stack:
        db = await Database.connect(database, most=4, keyring=Settings(_env_file=None).keyring())
        client = await Client.connect(temporal, namespace=namespace, data_converter=DATA_CONVERTER)
        http = await stack.enter_async_context(new_client())
        apps = find_apps(app_folders((), examples=True))
        servers = McpServers(apps, _none, Path(os.environ["SERVERS_HOME"]))
        toolbox = Toolbox(tools_of(apps), _none, http, servers)
        deps = Deps(db, LiveTokens(Valkey.connect(redis)), toolbox, Models(_none), Notifier(client, db))
        for worker in workers_for(deps, Kind.TOOLS, queue):
            await stack.enter_async_context(worker)
        print("serving", flush=True)
        await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
