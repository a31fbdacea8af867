"""Whether Postgres can write: one row that is rewritten and committed."""

import asyncpg

from store.content import SHARED
from store.database import Database

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
