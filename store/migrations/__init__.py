"""Migrations: plain SQL, run as the owner, by alembic wherever there is something to migrate.

A database that has no table yet gets all files in their order without it: alembic and what it needs take as much CPU to
import as a whole first start can spare (0.9 s, measured). Tests compare what the two ways leave.
"""

import asyncio
from pathlib import Path

import asyncpg

NEWEST = "0029"
"""The revision that this program wants; tests check that it is the last of versions/."""
LOCK = 7_236_110
"""An advisory lock's number, ours by agreement: two starts do not migrate at once."""
_ALEMBIC = (
    "CREATE TABLE public.alembic_version (version_num varchar(32) NOT NULL, "
    "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
)


async def is_newest(owner_url: str) -> bool:
    """Whether nothing is to be done: asked first, since alembic takes a second of CPU to import (measured)."""
    connection = await asyncpg.connect(owner_url, timeout=10)
    try:
        return await _version(connection) == NEWEST
    finally:
        await connection.close()


async def _version(connection: asyncpg.Connection) -> str | None:
    """The revision that the database is at; None where it has no table yet."""
    if await connection.fetchval("SELECT to_regclass('public.alembic_version')") is None:
        return None
    return str(await connection.fetchval("SELECT version_num FROM public.alembic_version"))


async def bring_up(owner_url: str) -> None:
    """Bring any database to the newest version, also an empty one.

    Raises: asyncpg's, SQLAlchemy's and psycopg's errors.
    """
    connection = await asyncpg.connect(owner_url, timeout=10)
    try:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
            version = await _version(connection)
            if version is None:
                for file in sorted((Path(__file__).parent / "versions").glob("*.sql")):
                    await connection.execute(file.read_text())
                await connection.execute(_ALEMBIC)
                await connection.execute("INSERT INTO public.alembic_version VALUES ($1)", NEWEST)
            if version in (None, NEWEST):
                return
    finally:
        await connection.close()
    await asyncio.to_thread(upgrade, owner_url)


def upgrade(owner_url: str, to: str = "head") -> None:
    """Bring the schema to the newest version, or to an earlier one that it has not reached.

    Raises: SQLAlchemy's and psycopg's errors.
    """
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["url"] = "postgresql+psycopg://" + owner_url.partition("://")[2]
    command.upgrade(config, to)
