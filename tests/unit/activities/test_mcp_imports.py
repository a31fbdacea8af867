"""The library of MCP is no part of a worker's start, nor of its first call."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio, sys
from pathlib import Path
from perdure.activities.toolbox.mcp import tools as mcp
from perdure.apps import app_folders, find_apps

async def main():
    servers = mcp.McpServers(find_apps(app_folders((), examples=True)), lambda name: None, Path("."))
    assert "mcp" not in sys.modules
    mcp.AFTER_START_SECONDS = 0.0
    servers.import_soon()
    while "perdure.activities.toolbox.mcp.session" not in sys.modules:
        await asyncio.sleep(0.01)
    await servers.close()

asyncio.run(main())
"""


def test_modules_of_the_first_mcp_call_are_imported_after_the_start() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], cwd=Path(__file__).parents[3], check=True, timeout=60)
