"""PgBouncer in front of the tests' Postgres."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit, urlunsplit

from perdure.local.ports import free_port, port_open
from tests.conftest import Urls
from tests.eventually import until

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
