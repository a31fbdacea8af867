"""Migrations: plain SQL, run as the owner, by alembic wherever there is something to migrate.

A database that has no table yet gets all files in their order without it: alembic and what it needs take as much CPU to
import as a whole first start can spare (0.9 s, measured). Tests compare what the two ways leave.
"""

import asyncio
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

import asyncpg

NEWEST = "0031"
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


# --- The three roles and the database, made by a superuser once: owner migrates, app runs, relay delivers.
# None of them is a superuser or bypasses row-level security; the superuser owns nothing that the program uses.


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


async def provision(admin_url: str, *, owner_url: str, app_url: str, relay_url: str) -> None:
    """Create or correct roles and database named in these URLs, with pgvector in it. Safe to repeat.

    Raises: asyncpg's errors where `admin_url` may not create roles, or where the server has no pgvector.
    """
    admin = await asyncpg.connect(admin_url, timeout=10)
    try:
        for url in (owner_url, app_url, relay_url):
            await _role(admin, url)
        owner, database = urlsplit(owner_url).username or "", urlsplit(owner_url).path.lstrip("/")
        if not await admin.fetchval("SELECT true FROM pg_database WHERE datname = $1", database):
            await admin.execute(f"CREATE DATABASE {_quoted(database)} OWNER {_quoted(owner)} TEMPLATE template0")
    finally:
        await admin.close()
    await _extension(urlunsplit(urlsplit(admin_url)._replace(path=f"/{database}")))


async def _extension(admin_url: str) -> None:
    """pgvector, which only a superuser may create; in `public`, where the store's SQL names it."""
    admin = await asyncpg.connect(admin_url, timeout=10)
    try:
        if not await admin.fetchval("SELECT true FROM pg_extension WHERE extname = 'vector'"):
            await admin.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
    finally:
        await admin.close()


async def _role(admin: asyncpg.Connection, url: str) -> None:
    parts = urlsplit(url)
    name, password = parts.username or "", unquote(parts.password or "")
    exists = await admin.fetchval("SELECT true FROM pg_roles WHERE rolname = $1", name)
    verb = "ALTER" if exists else "CREATE"
    await admin.execute(
        f"{verb} ROLE {_quoted(name)} LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE "
        f"PASSWORD {_literal(password)}"
    )
