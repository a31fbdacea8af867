"""PgBouncer between Perdure and Postgres, with a pool that is much smaller than the number of clients."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit, urlunsplit

import pytest

from perdure.contracts.errors import InvariantBroken
from perdure.local.ports import free_port, port_open
from perdure.store.database import Database
from perdure.store.migrations import upgrade
from tests.acceptance.running import running
from tests.acceptance.turns import Turns, json_of
from tests.conftest import Template, Urls, empty_database
from tests.eventually import until
from tests.scale import sized

_SETTINGS = """
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = plain
auth_file = {users}
pool_mode = {mode}
default_pool_size = {connections}
max_client_conn = 500
{more}
"""


def through(url: str, port: int) -> str:
    """Returns the address by which the pooler on this port reaches the same database with the same role."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{port}"))


def _write(folder: Path, users: str, given: Mapping[str, object]) -> Path:
    """Writes PgBouncer's files where every user can read them, and returns the path of its settings."""
    folder.chmod(0o755)
    config, users_file = folder / "pgbouncer.ini", folder / "users.txt"
    users_file.write_text(users)
    config.write_text(_SETTINGS.format(users=users_file, **given))
    return config


@asynccontextmanager
async def pooled(urls: Urls, mode: str = "transaction", connections: int = 4, more: str = "") -> AsyncIterator[Urls]:
    """Yields the addresses of the same database behind PgBouncer, which has that many connections for each role. All
    other settings are its defaults, so that it refuses startup parameters."""
    program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
    names = [urlsplit(url) for url in (urls.owner, urls.app, urls.relay)]
    host, port, own_port = names[0].hostname, names[0].port, free_port()
    users = "".join(f'"{each.username}" "{unquote(each.password or "")}"\n' for each in names)
    given = {"host": host, "port": port, "own_port": own_port, "mode": mode, "connections": connections, "more": more}
    with TemporaryDirectory() as folder:
        config = _write(Path(folder), users, given)
        user = ["-u", "nobody"] if os.getuid() == 0 else []  # PgBouncer cannot run as root
        process = await asyncio.create_subprocess_exec(program, "-q", *user, config)
        try:
            await until(lambda: port_open("127.0.0.1", own_port), 20)
            yield Urls(urls.admin, *(through(url, own_port) for url in (urls.owner, urls.app, urls.relay)))
        finally:
            process.kill()
            await process.wait()


@pytest.mark.parametrize(("mode", "statement_cache"), [("session", True), ("transaction", False)])
async def test_statements_behind_a_pooler_see_their_own_tenant(urls: Urls, mode: str, statement_cache: bool) -> None:
    async with pooled(urls, mode, connections=20 if mode == "session" else 2) as behind:
        database = await Database.connect(behind.app, plan_once=True, statement_cache=statement_cache)

        async def read(tenant: str) -> list[str]:
            async with database.transaction(tenant) as tx:
                await tx.fetchval("SELECT count(*) FROM turns WHERE tenant_id <> $1", tenant)
                names = ("perdure.tenant", "search_path", "jit", "plan_cache_mode")
                return [await tx.fetchval("SELECT current_setting($1)", name) for name in names]

        tenants = [f"tenant-{number}" for number in range(40)]
        settings = await asyncio.gather(*map(read, tenants))
        assert settings == [[tenant, "perdure", "off", "force_generic_plan"] for tenant in tenants]
        assert await asyncio.gather(*(database.principal_row("none") for _ in range(40))) == [None] * 40
        await database.close()


@pytest.mark.parametrize(("connections", "more", "code"), [
    *((4, more, "statements_lost") for more in ("", "server_round_robin = 1\nmin_pool_size = 2")),
    (4, "server_round_robin = 1", "statements_lost"),
    (1, "", "one_connection"),
])  # fmt: skip
async def test_a_pooler_that_cannot_work_is_refused(urls: Urls, connections: int, more: str, code: str) -> None:
    async with pooled(urls, connections=connections, more=more) as behind:
        with pytest.raises(InvariantBroken) as refused:
            await Database.connect(behind.app)
    assert refused.value.code == code


@pytest.mark.sized
@pytest.mark.timeout(240)
async def test_a_stack_migrates_and_runs_behind_a_pooler_in_transaction_mode(
    template: Template, tmp_path: Path
) -> None:
    orders = range(901, 901 + sized(24, 8))
    async with empty_database(template) as urls, pooled(urls, connections=3) as behind:
        await asyncio.to_thread(upgrade, behind.owner, "0009")
        given = {"DATABASE_URL": behind.app, "DATABASE_OWNER_URL": behind.owner, "DATABASE_RELAY_URL": behind.relay}
        with running(tmp_path / "home", "--examples", PERDURE_STATEMENT_CACHE="false", **given) as stack:
            async with Turns(stack, "refunds") as turns:
                begun = await turns.begin_all([f"Refund order {order}" for order in orders])
                assert await turns.until(begun, "awaiting_approval") == []
                await asyncio.gather(*map(turns.approve, begun))
                assert await turns.until(begun, "completed") == []
                found = (await json_of(turns.reviewer.get("/v1/effects", params={"limit": 200})))["items"]
                assert sorted(each["turn_id"] for each in found) == sorted(begun)
