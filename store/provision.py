"""The three roles and the database, made by a superuser once: owner migrates, app runs, relay delivers.

None of them is a superuser or bypasses row-level security; the superuser owns nothing that the program uses.
"""

from urllib.parse import unquote, urlsplit, urlunsplit

import asyncpg


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
