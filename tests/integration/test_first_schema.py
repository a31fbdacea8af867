"""An empty database gets every migration without alembic; what that leaves is what alembic leaves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from perdure.store.database import new_id
from perdure.store.migrations import bring_up, is_newest, provision, upgrade
from tests.conftest import Template

WHAT = {
    "columns": "SELECT table_schema, table_name, column_name, data_type, column_default, is_nullable, is_identity "
    "FROM information_schema.columns WHERE table_schema IN ('perdure', 'public') ORDER BY 1, 2, 3",
    "constraints": "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint "
    "WHERE connamespace IN ('perdure'::regnamespace, 'public'::regnamespace) ORDER BY 1, 2",
    "indexes": "SELECT schemaname, indexname, indexdef FROM pg_indexes "
    "WHERE schemaname IN ('perdure', 'public') ORDER BY 1, 2",
    "policies": "SELECT tablename, policyname, roles::text, cmd, qual, with_check FROM pg_policies ORDER BY 1, 2",
    "functions": "SELECT proname, pg_get_functiondef(oid), proacl::text FROM pg_proc "
    "WHERE pronamespace = 'perdure'::regnamespace ORDER BY 1, 2",
    "triggers": "SELECT tgrelid::regclass::text, tgname, pg_get_triggerdef(oid) FROM pg_trigger "
    "WHERE NOT tgisinternal ORDER BY 1, 2",
    "rights": "SELECT relname, relacl::text, relrowsecurity, relforcerowsecurity FROM pg_class "
    "WHERE relnamespace IN ('perdure'::regnamespace, 'public'::regnamespace) ORDER BY 1",
    "column rights": "SELECT attrelid::regclass::text, attname, attacl::text FROM pg_attribute "
    "WHERE attacl IS NOT NULL AND attrelid > 16383 ORDER BY 1, 2",
    "version": "SELECT version_num FROM public.alembic_version",
    "search path": "SELECT setconfig::text FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase "
    "WHERE d.datname = current_database() ORDER BY 1",
}


@asynccontextmanager
async def empty_database(template: Template) -> AsyncIterator[str]:
    """A database with roles and no table: its owner's URL."""
    name, given = "t_first_" + new_id()[-12:], template.urls
    owner, app, relay = (
        urlunsplit(urlsplit(url)._replace(path=f"/{name}")) for url in (given.owner, given.app, given.relay)
    )
    await provision(given.admin, owner_url=owner, app_url=app, relay_url=relay)
    try:
        yield owner
    finally:
        admin = await asyncpg.connect(given.admin)
        await admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
        await admin.close()


async def schema_of(url: str) -> dict[str, list[tuple[object, ...]]]:
    """Everything that a migration makes, as rows."""
    connection = await asyncpg.connect(url)
    try:
        return {what: [tuple(row) for row in await connection.fetch(sql)] for what, sql in WHAT.items()}
    finally:
        await connection.close()


async def by_alembic(url: str) -> None:
    await asyncio.to_thread(upgrade, url)


async def test_both_ways_leave_the_same_schema(template: Template) -> None:
    ways: list[Callable[[str], Awaitable[None]]] = [bring_up, by_alembic]
    async with AsyncExitStack() as stack:
        made = []
        for way in ways:
            url = await stack.enter_async_context(empty_database(template))
            await way(url)
            assert await is_newest(url)
            made.append(await schema_of(url))
    ours, alembics = made
    assert len(ours["columns"]) > 100, "the schema was not looked at"
    for what in WHAT:
        assert ours[what] == alembics[what], what


async def test_two_first_starts_at_once_make_one_schema(template: Template) -> None:
    async with empty_database(template) as url:
        await asyncio.gather(*(bring_up(url) for _ in range(3)))
        assert await is_newest(url)


async def test_an_older_database_is_migrated(template: Template) -> None:
    async with empty_database(template) as url:
        await asyncio.to_thread(upgrade, url, "0004")
        await bring_up(url)
        assert await is_newest(url)


async def test_a_first_start_that_fails_leaves_nothing(template: Template, monkeypatch: pytest.MonkeyPatch) -> None:
    async with empty_database(template) as url:
        with monkeypatch.context() as broken:
            broken.setattr("perdure.store.migrations.NEWEST", "x" * 33)  # too long for alembic's column
            with pytest.raises(asyncpg.StringDataRightTruncationError):
                await bring_up(url)
        assert not await is_newest(url)
        await bring_up(url)
        assert await is_newest(url)
