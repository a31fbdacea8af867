"""Which function runs a tool of an agent, and the credentials that only this worker resolves."""

from collections.abc import Callable, Iterable, Mapping

import httpx

from contracts.agents import ToolCard
from perdure.tools import Tool

SecretOf = Callable[[str], str | None]


class Toolbox:
    """Tools by agent and name."""

    def __init__(self, tools: Iterable[tuple[str, Tool]], secret_of: SecretOf, http: httpx.AsyncClient) -> None:
        self._tools: Mapping[tuple[str, str], Tool] = {(agent_id, tool.card.name): tool for agent_id, tool in tools}
        self._secret_of = secret_of
        self.http = http

    def find(self, agent_id: str, name: str) -> Tool | None:
        """The tool `name` of this agent, or None where this worker has it not."""
        return self._tools.get((agent_id, name))

    def secrets_for(self, card: ToolCard) -> dict[str, str]:
        """The credentials that a tool's card names, as far as they are set."""
        values = {name: self._secret_of(name) for name in card.secrets}
        return {name: value for name, value in values.items() if value}
