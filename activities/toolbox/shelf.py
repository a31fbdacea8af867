"""Which function runs a tool of an agent, and the credentials that only this worker resolves."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import httpx

from activities.toolbox.mcp import McpServers, McpTool
from contracts.agents import ToolCard
from perdure.tools import Tool

SecretOf = Callable[[str], str | None]


class Toolbox:
    """Tools by agent and name."""

    def __init__(
        self,
        tools: Iterable[tuple[str, Tool]],
        secret_of: SecretOf,
        http: httpx.AsyncClient,
        servers: McpServers | None = None,
        of_agents: Mapping[str, httpx.AsyncClient] = MappingProxyType({}),
    ) -> None:
        """`http` is for the tools of agents that have no client in `of_agents`: each app names its own hosts."""
        self._tools: Mapping[tuple[str, str], Tool] = {(agent_id, tool.card.name): tool for agent_id, tool in tools}
        self._secret_of = secret_of
        self._servers = servers
        self.http = http
        self._of_agents = of_agents

    def http_for(self, agent_id: str) -> httpx.AsyncClient:
        """The client that the tools of this agent send through."""
        return self._of_agents.get(agent_id, self.http)

    def find(self, agent_id: str, name: str, pinned: ToolCard | None = None) -> Tool | McpTool | None:
        """The tool `name` of this agent, or None where this worker has it not. `pinned` is the card that the turn
        began with, under which a server's tool is called."""
        tool = self._tools.get((agent_id, name))
        return tool if tool is not None or self._servers is None else self._servers.find(agent_id, pinned)

    def import_soon(self) -> None:
        """Import early what only the first call of a server's tool would."""
        if self._servers is not None:
            self._servers.import_soon()

    def secrets_for(self, card: ToolCard) -> dict[str, str]:
        """The credentials that a tool's card names, as far as they are set."""
        values = {name: self._secret_of(name) for name in card.secrets}
        return {name: value for name, value in values.items() if value}
