"""A worker of the examples' tools in its own process, to be killed. Its servers keep their data in SERVERS_HOME."""

import os
from pathlib import Path

import httpx

from perdure.activities.toolbox.mcp.tools import McpServers
from perdure.activities.toolbox.registry import Toolbox
from perdure.apps import app_folders, find_apps
from perdure.contracts.turns import Kind
from perdure.worker.queues import tools_of
from tests.doubles.killed_worker import nothing, serve


def _tools(http: httpx.AsyncClient) -> Toolbox:
    apps = find_apps(app_folders((), examples=True))
    return Toolbox(tools_of(apps), nothing, http, McpServers(apps, nothing, Path(os.environ["SERVERS_HOME"])))


if __name__ == "__main__":
    serve(Kind.TOOLS, toolbox=_tools)
