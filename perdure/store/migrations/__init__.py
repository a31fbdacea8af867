"""Migrations: plain SQL that runs as the owner, through alembic if there is something to migrate.

An empty database gets all files in order without alembic. Importing alembic and its dependencies takes 0.9 s of CPU
(measured), as much as a whole first start can spare. Tests compare the results of both ways.
"""

import asyncio
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

import asyncpg
import structlog

from perdure.contracts.errors import UpstreamUnavailable

NEWEST = "0046"
"""The revision that this program requires. Tests check that it is the last one in `versions/`."""
LOCK = 7_236_110
"""The number of Perdure's advisory lock, which prevents two starts from migrating at the same time."""
LOCK_SECONDS = 3.0
"""Maximum time that a migration waits for one lock. All requests that need the table queue behind it meanwhile."""
MAX_TRIES = 30
PAUSE_SECONDS = 7.0
"""Time between two tries, for the requests that queued."""
_CONTENDED = frozenset({"55P03", "40P01"})
"""SQLSTATEs of a lock that was not granted in time, and of a deadlock with requests."""
_HOLDERS = """
SELECT a.pid, coalesce(nullif(a.application_name, ''), a.usename, 'unknown') AS name,
  count(DISTINCT l.relation)::int AS tables
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid JOIN pg_class c ON c.oid = l.relation
WHERE l.granted AND l.pid <> pg_backend_pid() AND c.relnamespace = to_regnamespace('perdure') AND c.relkind = 'r'
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
GROUP BY 1, 2 ORDER BY 3 DESC, 1 LIMIT 3
"""
_log = structlog.get_logger(__name__)
_ALEMBIC = (
    "CREATE TABLE public.alembic_version (version_num varchar(32) NOT NULL, "
    "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
)


async def is_newest(owner_url: str) -> bool:
    """Returns whether the database is up to date. It is checked first, because importing alembic takes a second of CPU
    (measured)."""
    connection = await _connect(owner_url)
    try:
        async with connection.transaction():
            return await _version(connection) == NEWEST
    finally:
        await connection.close()


async def _connect(url: str) -> asyncpg.Connection:
    """Returns a connection that keeps no prepared statements, because a pooler can be between."""
    return await asyncpg.connect(url, timeout=10, statement_cache_size=0)


async def _version(connection: asyncpg.Connection) -> str | None:
    """Returns the revision of the database, or None if it has no version table."""
    if await connection.fetchval("SELECT to_regclass('public.alembic_version')") is None:
        return None
    return str(await connection.fetchval("SELECT version_num FROM public.alembic_version"))


async def bring_up(owner_url: str) -> None:
    """Migrates a database to the newest version; it can be empty.

    Raises: UpstreamUnavailable `migration_blocked` if other sessions hold locks for minutes; errors of asyncpg,
    SQLAlchemy and psycopg.
    """
    connection = await _connect(owner_url)
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
    await _upgrade_between_requests(owner_url)


async def _upgrade_between_requests(owner_url: str) -> None:
    """Migrates in short tries. Without them, a session that keeps its locks for long, such as pg_dump, would block the
    migration, and the migration all requests."""
    for number in range(1, MAX_TRIES + 1):
        try:
            return await asyncio.to_thread(upgrade, owner_url)
        except Exception as error:
            if getattr(getattr(error, "orig", error), "sqlstate", None) not in _CONTENDED:
                raise
        holders = await _lock_holders(owner_url)
        if number < MAX_TRIES:
            _log.warning(
                "migration_waits",
                for_locks_of=holders,
                tried=number,
                of=MAX_TRIES,
                retry_in_seconds=PAUSE_SECONDS,
                way_out="wait, or end these sessions; requests are served between the tries",
            )
            await asyncio.sleep(PAUSE_SECONDS)
    raise UpstreamUnavailable(
        "migration_blocked",
        f"The database was not migrated, because other sessions held locks for {MAX_TRIES} tries: "
        f"{'; '.join(holders) or 'they have ended since'}. Nothing was changed; start again when they have ended, or "
        "end them with `SELECT pg_terminate_backend(PID)`",
        {"holders": holders},
    )


async def _lock_holders(owner_url: str) -> list[str]:
    """Describes the sessions that hold locks on most tables."""
    connection = await _connect(owner_url)
    try:
        rows = await connection.fetch(_HOLDERS)
    finally:
        await connection.close()
    return [f"{row['name']} (PID {row['pid']}, {row['tables']} tables)" for row in rows]


def upgrade(owner_url: str, to: str = "head") -> None:
    """Migrates the schema to the newest version, or to an earlier one that is not reached yet. It tries once.

    Raises: errors of SQLAlchemy and psycopg.
    """
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["url"] = "postgresql+psycopg://" + owner_url.partition("://")[2]
    command.upgrade(config, to)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


async def provision(admin_url: str, *, owner_url: str, app_url: str, relay_url: str) -> None:
    """Creates or corrects the roles and the database that these URLs name, with pgvector. Safe to repeat.

    A superuser does this once. The owner migrates, the app runs, and the relay delivers. No role is a superuser or
    bypasses row-level security. The superuser owns nothing that the program uses.

    Raises: errors of asyncpg, if `admin_url` has no permission to create roles or the server has no pgvector.
    """
    admin = await _connect(admin_url)
    try:
        async with admin.transaction():
            for url in (owner_url, app_url, relay_url):
                await _role(admin, url)
        owner, database = urlsplit(owner_url).username or "", urlsplit(owner_url).path.lstrip("/")
        async with admin.transaction():
            exists = await admin.fetchval("SELECT true FROM pg_database WHERE datname = $1", database)
        if not exists:
            await admin.execute(f"CREATE DATABASE {_quoted(database)} OWNER {_quoted(owner)} TEMPLATE template0")
    finally:
        await admin.close()
    await _extension(urlunsplit(urlsplit(admin_url)._replace(path=f"/{database}")))


async def _extension(admin_url: str) -> None:
    """Creates pgvector, which requires a superuser. Its schema is `public`, because the store's SQL names it there."""
    admin = await _connect(admin_url)
    try:
        async with admin.transaction():
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
