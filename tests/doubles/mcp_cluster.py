"""The simulated cluster of perdure/examples/ops: its server as the app names it, over stdio or HTTP, and its faults."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perdure.activities.toolbox.mcp.session import McpSession
from perdure.activities.toolbox.mcp.tools import McpTool
from perdure.contracts.mcp import McpServer
from perdure.examples.ops.cluster.faults import Fault, FaultKind, Faults
from perdure.examples.ops.cluster.state import State
from perdure.local.ports import HOST, port_open
from perdure.sdk.outcomes import ToolResult
from tests.unit.apps.tool_contexts import context

OPS = Path(__file__).parents[2] / "perdure" / "examples" / "ops"
TOOLSETS = ("k8s", "helm", "argo", "jenkins")
RESTART = "cluster_k8s_deployment_restart"
PODS = "cluster_k8s_pods_list"
WEB = {"namespace": "shop", "name": "web"}


def cluster_server(**fields: Any) -> McpServer:
    """As the app's file names it; `fields` instead of its own."""
    given: dict[str, Any] = {"trust_annotations": True, "toolsets": TOOLSETS, "start_seconds": 30, **fields}
    return McpServer(name="cluster", **({} if "url" in given else {"command": ("python", "-m", "cluster")}), **given)


@dataclass(slots=True)
class McpBench:
    session: McpSession
    home: Path

    @property
    def state(self) -> State:
        return State(self.home / "cluster.json")

    def fail(self, kind: FaultKind, tool: str = "", **fields: Any) -> None:
        Faults(self.home / "faults.json").arm(Fault(kind, tool, **fields))

    async def call(self, name: str, args: dict[str, Any], key: str = "key-1", seconds: float = 30.0) -> ToolResult:
        """Call a tool as the engine does, under the card of now."""
        card = (await self.session.connection()).offer.tools[name].card
        given = replace(context(card, seconds=seconds), idempotency_key=key)
        return await McpTool(card, self.session).run(args, given)


@asynccontextmanager
async def bench(home: Path, **fields: Any) -> AsyncIterator[McpBench]:
    """A session over stdio, or to the `url` that is given."""
    secrets = {"cluster_token": "open sesame"}
    session = McpSession(cluster_server(**fields), OPS, home, secrets.get)
    try:
        yield McpBench(session, home)
    finally:
        await session.close()


@dataclass(slots=True)
class Web:
    """The server over HTTP, as a process that can be killed and started again."""

    home: Path
    port: int
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/mcp"

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "cluster", "--home", str(self.home), "http", "--port", str(self.port),
            cwd=OPS, env={"CLUSTER_TOKEN": "open sesame"},
        )  # fmt: skip
        for _ in range(600):
            if await port_open(HOST, self.port):
                return
            await asyncio.sleep(0.05)
        raise AssertionError("the server did not start")

    async def kill(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
        if self.process is not None:
            await self.process.wait()
