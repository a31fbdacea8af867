"""Finds the function that runs an agent's tool, and the secrets that only this worker resolves."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import httpx
import structlog
from pydantic import JsonValue

from perdure.activities.sandbox import Block, Sandbox, SandboxUnavailable, run_block
from perdure.activities.toolbox.mcp.tools import McpServers, McpTool
from perdure.contracts.agents import PublishedAgent, ToolCard
from perdure.contracts.skills import CodeBlock
from perdure.sdk.tools import Tool, ToolContext, ToolRefused, ToolResult, ToolUnavailable
from perdure.store.agents import TableCache
from perdure.store.database import Connection

SecretOf = Callable[[str], str | None]
MAX_PRINTED_CHARACTERS = 1_000
"""Maximum length of a block's printed text that the model receives with the result."""


class Toolbox:
    """The tools of a worker, by agent and name."""

    def __init__(
        self,
        tools: Iterable[tuple[str, Tool]],
        secret_of: SecretOf,
        http: httpx.AsyncClient,
        servers: McpServers | None = None,
        http_by_agent: Mapping[str, httpx.AsyncClient] = MappingProxyType({}),
    ) -> None:
        """`http` is for the tools of agents without a client in `http_by_agent`. Each app names its own hosts."""
        self._tools: Mapping[tuple[str, str], Tool] = {(agent_id, tool.card.name): tool for agent_id, tool in tools}
        self._secret_of = secret_of
        self._servers = servers
        self.http = http
        self._http_by_agent = http_by_agent

    @property
    def tools(self) -> Collection[Tool]:
        """The tools of Python functions, of every agent."""
        return self._tools.values()

    def http_for(self, agent_id: str) -> httpx.AsyncClient:
        """Returns the client through which this agent's tools send."""
        return self._http_by_agent.get(agent_id, self.http)

    def find(self, agent_id: str, name: str, pinned: ToolCard | None = None) -> Tool | McpTool | None:
        """Returns the tool `name` of this agent, or None if this worker does not have it. `pinned` is the card that the
        turn began with, under which a server's tool is called."""
        tool = self._tools.get((agent_id, name))
        return tool if tool is not None or self._servers is None else self._servers.find(agent_id, pinned)

    def import_soon(self) -> None:
        """Imports in advance the modules that the first call of a server's tool would import."""
        if self._servers is not None:
            self._servers.import_soon()

    def secrets_for(self, card: ToolCard) -> dict[str, str]:
        """Returns the secrets that a tool's card names, if they are set."""
        values = {name: self._secret_of(name) for name in card.secrets}
        return {name: value for name, value in values.items() if value}


_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BlockTool:
    """A block that its agent's model can call. It is resolved in the version that its turn pinned, validated, and run
    in the sandbox. The published agent contains a block's source, and names its tables by digest. So any worker with a
    sandbox runs any version, and a deploy voids no call."""

    card: ToolCard
    block: CodeBlock = field(repr=False)
    tables: Mapping[str, JsonValue] = field(repr=False)
    """The tables that the block needs, complete, by name."""
    sandbox: Sandbox = field(repr=False)

    async def run(self, args: Mapping[str, JsonValue], context: ToolContext) -> ToolResult:
        """Runs the block once. The result is wrapped in {status, message, result}; `message` is the printed text.

        Raises: ToolRefused if the arguments, the block or its result are invalid; ToolUnavailable if this machine
        cannot start an interpreter.
        """
        block = Block(self.block.source, self.block.input, self.block.output)
        engine_inputs: dict[str, JsonValue] = {"data": {**self.tables}} if self.block.needs else {}
        try:
            result = await run_block(self.sandbox, context.tenant_id, block, args, engine_inputs=engine_inputs)
        except SandboxUnavailable as error:
            raise ToolUnavailable(f"the sandbox is unavailable: {error}") from error
        if result.fault is not None:
            _log.info("code_block_fault", tool=self.card.name, kind=result.fault.kind.value, line=result.fault.line)
            raise ToolRefused(result.fault.message)
        return ToolResult(
            {"status": "ok", "message": result.output[:MAX_PRINTED_CHARACTERS].strip(), "result": result.value}
        )


async def block_tool(
    tx: Connection, cache: TableCache, sandbox: Sandbox, agent: PublishedAgent, card: ToolCard
) -> BlockTool | None:
    """Returns the block for `card` with its tables; None if the card is for another tool.

    Raises: CallerError 404 `app_table_not_found`.
    """
    for skill in agent.definition.skills:
        for block in skill.blocks:
            if block.name == card.name and block.llm_visible:
                tables = await cache.read_tables(tx, {name: agent.tables[name] for name in block.needs})
                return BlockTool(card, block, tables, sandbox)
    return None
