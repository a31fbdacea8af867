"""The embedded Postgres as a child: on loopback, with everything that a crash-safe server does left on.

Invariants: fsync and full_page_writes stay on, since every promise of Perdure is a committed row; no password is on a
command line; SIGINT (Postgres's fast stop) ends it, also when its supervisor is killed.
"""

import re
import signal
from dataclasses import dataclass
from pathlib import Path

from local.child import ChildSpec
from local.credentials import Credentials
from local.home import Home
from local.ports import HOST
from local.postgres_cluster import BOOTSTRAP, clean_environ, clear_stale_lock
from local.postgres_user import PostgresLaunch
from local.probes import postgres_accepts, postgres_lives

DATABASE = "perdure"
STOP_RANK = 4

_SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "max_wal_size": "512MB",
    "wal_compression": "on",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
}
"""For a small machine that also runs everything else; 200 connections are six processes with their pools."""

_SHOWN = re.compile(r"\b(WARNING|FATAL|PANIC):")
"""Not ERROR: a statement that a client got wrong is the client's to report; the log file has it."""


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """One connection string for each role; the roles but `admin` are made by the prepare step."""

    admin: str
    owner: str
    app: str
    relay: str


def address(port: int, credentials: Credentials) -> PostgresAddress:
    """The connection strings of the cluster on this port."""

    def dsn(role: str, password: str, database: str = DATABASE) -> str:
        return f"postgresql://{role}:{password}@{HOST}:{port}/{database}"

    return PostgresAddress(
        admin=dsn(BOOTSTRAP, credentials.bootstrap, "postgres"),
        owner=dsn("perdure_owner", credentials.owner),
        app=dsn("perdure_app", credentials.app),
        relay=dsn("perdure_relay", credentials.relay),
    )


def child_spec(home: Home, launch: PostgresLaunch, port: int) -> ChildSpec:
    """The server of the cluster in this data folder."""
    folder = home.postgres
    settings = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]

    async def ready(pid: int) -> bool:
        return postgres_accepts(folder, pid)

    async def lives(_pid: int) -> bool:
        return await postgres_lives(HOST, port)

    return ChildSpec(
        role="postgres",
        command=launch.command("postgres", "-D", str(folder), "-p", str(port), *settings),
        environ=clean_environ(),
        cwd=Path("/"),
        log=home.log("postgres"),
        ready=ready,
        stop_steps=((signal.SIGINT, 15.0), (signal.SIGQUIT, 5.0)),
        stop_rank=STOP_RANK,
        death_signal=signal.SIGINT,
        run_as=launch.run_as,
        shows=_SHOWN,
        before_start=lambda: clear_stale_lock(folder),
        lives=lives,
        detail=f"{HOST}:{port}",
    )
