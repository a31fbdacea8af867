"""Migrations: plain SQL, run by alembic as the owner."""

from pathlib import Path

import asyncpg

NEWEST = "0008"
"""The revision that this program wants; tests check that it is the last of versions/."""


async def is_newest(owner_url: str) -> bool:
    """Whether nothing is to be done: asked first, since alembic takes a second of CPU to import (measured)."""
    connection = await asyncpg.connect(owner_url, timeout=10)
    try:
        if await connection.fetchval("SELECT to_regclass('public.alembic_version')") is None:
            return False
        return bool(await connection.fetchval("SELECT version_num FROM public.alembic_version") == NEWEST)
    finally:
        await connection.close()


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
