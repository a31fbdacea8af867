"""Operational status: whether Postgres can write, the open work of a tenant, and the health of MCP servers."""

import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import asyncpg

from perdure.store.agents import SHARED
from perdure.store.approvals.review import OPEN
from perdure.store.database import Connection, Database
from perdure.store.turns.views import show_stuck
from perdure.store.valkey import Valkey

_WRITE = (
    f"INSERT INTO write_probes (tenant_id) VALUES ('{SHARED}') ON CONFLICT (tenant_id) DO UPDATE SET at = excluded.at"
)
_NEW_BLOCKS = (
    "SET LOCAL work_mem = '64kB'; WITH probe AS MATERIALIZED (SELECT repeat('x', 8000) FROM generate_series(1, 128)) "
    "SELECT count(*) FROM probe"
)
"""A query whose rows need 1 MB more than its memory, so that Postgres writes them to a temporary file, which it removes
at the end. A rewritten row reuses blocks that the row's table and the WAL have already."""
MAX_STUCK = 50
KEPT_SECONDS = 86_400.0
"""The maximum age of a state that is shown. A server with an older state may have been removed from its app."""


async def write_once(db: Database) -> None:
    """Rewrites one row, takes new blocks of the disk, and commits. Nothing that it writes grows.

    Raises: the exceptions that `write_fault` describes.
    """
    await db.execute(SHARED, f"{_WRITE}; {_NEW_BLOCKS}")


def storage_fault(error: BaseException) -> str:
    """Returns what is wrong with the storage of Postgres as text; empty if the error is about something else."""
    if isinstance(error, asyncpg.DiskFullError):
        return "cannot write: its disk is full; free some space there"
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return "cannot write: it is read-only; make it accept writes, or point DATABASE_URL to a server that does"
    if isinstance(error, asyncpg.PostgresIOError):
        return "cannot write: its disk reports errors; see the log of Postgres"
    return ""


def write_fault(error: BaseException) -> str:
    """Returns the meaning of a Postgres error as text."""
    if fault := storage_fault(error):
        return fault
    if isinstance(error, asyncpg.CannotConnectNowError):
        return "starting, stopping or recovering"
    if isinstance(error, asyncpg.TooManyConnectionsError):
        return "no free connection"
    if isinstance(error, asyncpg.PostgresError):
        return f"cannot write: {type(error).__name__}"
    return "does not answer"


RELAY = "perdure-relay"
"""The application name of the relay's connections to Postgres."""
_TURNS = """
SELECT status, count(*)::int AS count, min(created_at) AS oldest_at FROM turns WHERE ended_at IS NULL
GROUP BY status ORDER BY status
"""
_STUCK = """
SELECT id::text AS turn_id, agent_id AS agent, stuck FROM turns WHERE ended_at IS NULL AND stuck IS NOT NULL
ORDER BY stuck->>'since', id LIMIT $1
"""
_OLDEST = f"""
SELECT a.id::text, a.tool, a.agent_id AS agent, a.turn_id::text, a.requested_at, a.expires_at FROM approvals a
WHERE {OPEN} ORDER BY a.requested_at, a.id LIMIT 1
"""
# The relay's claim of a note lasts ten seconds. No relay is working on a note that is overdue by more than that.
_RELAY = """
SELECT (SELECT count(*)::int FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = $1) AS sessions,
  (SELECT count(*)::int FROM outbox WHERE due_at < now() - interval '15 seconds') AS overdue
"""


@dataclass(frozen=True, slots=True)
class Workload:
    """The open work of a tenant at one moment. It has counts, without users' texts."""

    turns: list[dict[str, object]]
    """The open turns by status: their number and the creation time of the oldest."""
    stuck: list[dict[str, object]]
    """The turns that do not continue, at most `MAX_STUCK`."""
    oldest_approval: dict[str, object] | None
    """The oldest pending approval."""
    relay_sessions: int
    overdue: int
    """Wake signals of the tenant that the relay should have delivered."""


async def workload_of(tx: Connection) -> Workload:
    """Returns the tenant's current work."""
    turns = [dict(row) for row in await tx.fetch(_TURNS)]
    stuck = [
        {"turn_id": row["turn_id"], "agent": row["agent"], **(show_stuck(row["stuck"]) or {})}
        for row in await tx.fetch(_STUCK, MAX_STUCK)
    ]
    oldest = await tx.fetchrow(_OLDEST)
    ((sessions, overdue),) = await tx.fetch(_RELAY, RELAY)
    return Workload(turns, stuck, dict(oldest) if oldest else None, sessions, overdue)


_KEY = "perdure:mcp-servers"


@dataclass(frozen=True, slots=True)
class ServerState:
    """The state of a server that a worker reported."""

    app: str
    name: str
    fault: str
    """The reason why the server could not be used; empty if it responded."""
    at: datetime


class ServerStates:
    """The states of all servers of a deployment. They are stored in Valkey, for display only. If it is unavailable,
    nothing is stored or returned."""

    def __init__(self, valkey: Valkey) -> None:
        self._valkey = valkey

    async def record_state(self, app: str, name: str, fault: str) -> None:
        """Stores the current state of a server."""
        written = json.dumps({"fault": fault, "at": time.time()})
        await self._valkey.attempt(lambda: self._valkey.client.hset(_KEY, f"{app}/{name}", written))

    async def list_recent(self) -> list[ServerState]:
        """Returns the recent states of all servers, sorted by app and name."""
        found = await self._valkey.attempt(lambda: self._valkey.client.hgetall(_KEY))
        states = []
        for place, written in sorted((str(place), str(written)) for place, written in (found or {}).items()):
            app, _, name = place.partition("/")
            stored = json.loads(written)
            if time.time() - stored["at"] < KEPT_SECONDS:
                states.append(ServerState(app, name, stored["fault"], datetime.fromtimestamp(stored["at"], UTC)))
        return states
