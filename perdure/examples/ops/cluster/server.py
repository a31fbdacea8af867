"""The MCP server over the cluster's file, with the requested failures."""

import asyncio
import base64
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import CallToolResult, ImageContent, TextContent, ToolAnnotations

from . import argo, helm, jenkins, k8s_objects, k8s_reads, k8s_writes
from .faults import Fault, FaultKind, Faults, hang_or_die
from .offering import KEY, KEY_TTL_SECONDS, DeclaredTool, SharedState
from .seed import MADE_UP
from .state import State

_MODULES: tuple[ModuleType, ...] = (k8s_reads, k8s_writes, k8s_objects, helm, argo, jenkins)
_HUGE_CHARACTERS = 10_000_000
_BYTES = bytes(range(256)) * 64


class ClusterServer(MCPServer):
    """The tools of the cluster in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__("cluster", instructions=MADE_UP, log_level="WARNING")
        self.shared = SharedState(State(folder / "cluster.json"), Faults(folder / "faults.json"))
        for module in _MODULES:
            for tool in (value for value in vars(module).values() if isinstance(value, DeclaredTool)):
                self._offer(tool)

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None) -> Any:
        """The tool's answer, or what a fault makes of it."""
        before = await self._fault(name, "before")
        if before is not None and before.kind is FaultKind.ERROR:
            return _error_result(before)
        answer = await super().call_tool(name, arguments, context)
        after = await self._fault(name, "after")
        return answer if after is None else _with_fault(answer, after)

    async def _fault(self, name: str, when: str) -> Fault | None:
        fault = await asyncio.to_thread(self.shared.faults.take, name, when)
        if fault is not None:
            await asyncio.to_thread(hang_or_die, fault)
        return fault

    def _offer(self, tool: DeclaredTool) -> None:
        meta: dict[str, Any] = {"tags": [tool.toolset]}
        if not tool.reads:
            meta[KEY] = {"ttl_seconds": KEY_TTL_SECONDS}
        hints = ToolAnnotations(read_only_hint=tool.reads, open_world_hint=False)
        if not tool.reads:
            hints = ToolAnnotations(read_only_hint=False, destructive_hint=tool.destructive, open_world_hint=False)
        self.add_tool(tool.function, annotations=hints, meta=meta)


def _with_fault(answer: Any, fault: Fault) -> Any:
    if fault.kind is FaultKind.ERROR:
        return _error_result(fault)
    if fault.kind is FaultKind.HUGE:
        return CallToolResult(content=[TextContent(type="text", text="x" * _HUGE_CHARACTERS)])
    if fault.kind is FaultKind.BINARY:
        image = ImageContent(type="image", data=base64.b64encode(_BYTES).decode(), mime_type="image/png")
        return CallToolResult(content=[image, TextContent(type="text", text="a\x00b\x1b[31mred\x07")])
    if fault.kind is FaultKind.WRONG_TYPE:
        return CallToolResult(content=[TextContent(type="text", text="3 pods")], structured_content={"pods": 3})
    if fault.kind is FaultKind.NOISE:
        sys.__stdout__.write("not a message\n")  # type: ignore[union-attr]
        sys.__stdout__.flush()  # type: ignore[union-attr]
    return answer


def _error_result(fault: Fault) -> CallToolResult:
    message = f"the requested fault: {fault.kind}"
    return CallToolResult(content=[TextContent(type="text", text=message)], is_error=True)


def folder_of_environment() -> Path:
    """Returns the cluster's folder: CLUSTER_HOME, else the folder that Perdure assigns, else the current one."""
    return Path(os.environ.get("CLUSTER_HOME") or os.environ.get("PERDURE_MCP_HOME") or ".")
