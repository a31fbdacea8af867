"""How the workers last met each MCP server, kept in Valkey: to be looked at, and never relied on."""

import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from store.valkey import Valkey

_KEY = "perdure:mcp-servers"
KEPT_SECONDS = 86_400.0
"""What was met longer ago says nothing any more: the server may have been taken out of its app."""


@dataclass(frozen=True, slots=True)
class ServerLook:
    """A server as a worker met it."""

    app: str
    name: str
    fault: str
    """Why it could not be used; empty where it answered."""
    at: datetime


class ServerLooks:
    """The looks of a deployment; all of it is silent where Valkey is away."""

    def __init__(self, valkey: Valkey) -> None:
        self._valkey = valkey

    async def met(self, app: str, name: str, fault: str) -> None:
        """Keep how a server was met just now."""
        written = json.dumps({"fault": fault, "at": time.time()})
        await self._valkey.attempt(lambda: self._valkey.client.hset(_KEY, f"{app}/{name}", written))

    async def listed(self) -> list[ServerLook]:
        """Every server that was met of late, by app and name."""
        found = await self._valkey.attempt(lambda: self._valkey.client.hgetall(_KEY))
        looks = []
        for place, written in sorted((str(place), str(written)) for place, written in (found or {}).items()):
            app, _, name = place.partition("/")
            said = json.loads(written)
            if time.time() - said["at"] < KEPT_SECONDS:
                looks.append(ServerLook(app, name, said["fault"], datetime.fromtimestamp(said["at"], UTC)))
        return looks
