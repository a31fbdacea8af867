"""Whether Postgres can write: one row that is rewritten and committed."""

import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import asyncpg

from perdure.store.agents import SHARED
from perdure.store.approvals.views import OPEN
from perdure.store.database import Connection, Database
from perdure.store.valkey import Valkey

_WRITE = (
    f"INSERT INTO write_probes (tenant_id) VALUES ('{SHARED}') ON CONFLICT (tenant_id) DO UPDATE SET at = excluded.at"
)


async def write_once(db: Database) -> None:
    """Commit a write.

    Raises: what `write_fault` explains.
    """
    await db.execute(SHARED, _WRITE)


def write_fault(error: BaseException) -> str:
    """What an error of Postgres means, in words."""
    if isinstance(error, asyncpg.DiskFullError):
        return "it cannot write: its disk is full"
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return "it takes no writes: it is read-only"
    if isinstance(error, asyncpg.CannotConnectNowError):
        return "it is starting, stopping or recovering"
    if isinstance(error, asyncpg.TooManyConnectionsError):
        return "it has no free connection"
    if isinstance(error, asyncpg.PostgresError):
        return f"it cannot write: {type(error).__name__}"
    return "it does not answer"


# --- What a tenant's turns wait for, and how its relay keeps up: counted, nobody's words among it.

RELAY = "perdure-relay"
"""How the relay names itself to Postgres."""
_TURNS = """
SELECT status, count(*)::int AS count, min(created_at) AS oldest_at FROM turns WHERE ended_at IS NULL
GROUP BY status ORDER BY status
"""
_OLDEST = f"""
SELECT a.id::text, a.tool, a.agent_id AS agent, a.turn_id::text, a.requested_at, a.expires_at FROM approvals a
WHERE {OPEN} ORDER BY a.requested_at, a.id LIMIT 1
"""
# A note that was tried is due again ten seconds later, so what is overdue by more than that is looked at by nobody.
_RELAY = """
SELECT (SELECT count(*)::int FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = $1) AS sessions,
  (SELECT count(*)::int FROM outbox WHERE due_at < now() - interval '15 seconds') AS overdue
"""


@dataclass(frozen=True, slots=True)
class Workload:
    """A tenant's work at one moment."""

    turns: list[dict[str, object]]
    """The open ones by status: how many, and since when the oldest."""
    oldest_approval: dict[str, object] | None
    """Of those that wait for a decision."""
    relay_sessions: int
    overdue: int
    """Wake-ups of the tenant that the relay should have delivered."""


async def workload_of(tx: Connection) -> Workload:
    """The tenant's work as it is now."""
    turns = [dict(row) for row in await tx.fetch(_TURNS)]
    oldest = await tx.fetchrow(_OLDEST)
    ((sessions, overdue),) = await tx.fetch(_RELAY, RELAY)
    return Workload(turns, dict(oldest) if oldest else None, sessions, overdue)


# --- How the workers last met each MCP server, kept in Valkey: to be looked at, and never relied on.

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
