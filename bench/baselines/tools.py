"""The agent's tools, found and called without a ledger: both only read."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import httpx
from pydantic import JsonValue

from perdure.contracts.ids import effect_key
from perdure.contracts.turns import TurnAddress
from perdure.contracts.values import canonical_json
from perdure.sdk.tools import Tool, ToolContext


class Tools:
    """The tools of one agent."""

    def __init__(self, agent_id: str, tools: Mapping[str, Tool], http: httpx.AsyncClient) -> None:
        self.agent_id = agent_id
        self._tools = tools
        self._http = http

    async def run(self, name: str, call_id: str, address: TurnAddress, args: Mapping[str, JsonValue]) -> str:
        """Returns the result of a call in the form that the model reads."""
        tool = self._tools[name]
        context = ToolContext(
            card=tool.card,
            tenant_id=address.tenant_id,
            turn_id=address.turn_id,
            conversation_id=address.conversation_id,
            call_id=call_id,
            user_id="",
            idempotency_key=effect_key(address.turn_id, call_id),
            deadline=datetime.now(UTC) + timedelta(seconds=tool.card.timeout_seconds),
            http=self._http,
        )
        return canonical_json((await tool.run(args, context)).output)
