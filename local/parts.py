"""The three data parts, embedded or replaced, and what the programs are told about them.

Postgres, Valkey and Temporal start at the same time and know nothing of each other.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from local import postgres_cluster, temporal_server
from local.credentials import Credentials, load_credentials
from local.data_start import DataStart, nothing
from local.external import external_postgres
from local.home import Home
from local.ports import PortBook
from local.postgres import PostgresAddress
from local.supervisor import Supervisor, together
from local.temporal_server import TemporalAddress

ALL_PARTS = frozenset({"postgres", "valkey", "temporal"})

_OURS = ("DATABASE_URL", "DATABASE_OWNER_URL", "DATABASE_RELAY_URL", "DATABASE_ADMIN_URL", "REDIS_URL")


@dataclass(frozen=True, slots=True)
class DataParts:
    """Where the data parts are; None for a part that was not asked for."""

    postgres: PostgresAddress | None = None
    redis_url: str | None = None
    temporal: TemporalAddress | None = None
    temporal_is_embedded: bool = True
    pids: Callable[[], Mapping[str, int]] = dict
    """The live processes of the embedded parts, by role."""

    def environ(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base` with the addresses as the programs expect them; the superuser's is not among them."""
        kept = {name: value for name, value in base.items() if name not in _OURS}
        if self.postgres is not None:
            kept["DATABASE_URL"] = self.postgres.app
            kept["DATABASE_OWNER_URL"] = self.postgres.owner
            kept["DATABASE_RELAY_URL"] = self.postgres.relay
        if self.redis_url is not None:
            kept["REDIS_URL"] = self.redis_url
        if self.temporal is not None:
            if self.temporal_is_embedded:
                # Left-over TLS or key settings, or a profile file, must not reach clients of the embedded server.
                kept = {name: value for name, value in kept.items() if not name.startswith("TEMPORAL_")}
                kept["TEMPORAL_CONFIG_FILE"] = os.devnull
            kept["TEMPORAL_ADDRESS"] = self.temporal.address
            kept["TEMPORAL_NAMESPACE"] = self.temporal.namespace
            kept["PERDURE_TEMPORAL_UI"] = self.temporal.ui or ""
        return kept

    def admin_environ(self, base: Mapping[str, str]) -> dict[str, str]:
        """The same with the superuser's connection string, for the prepare step alone."""
        admin = {} if self.postgres is None else {"DATABASE_ADMIN_URL": self.postgres.admin}
        return {**self.environ(base), **admin}


def without_addresses(environ: Mapping[str, str]) -> dict[str, str]:
    """What a process that is no part of Perdure inherits: nothing that opens a store or Temporal."""
    return {name: value for name, value in environ.items() if name not in _OURS and not name.startswith("TEMPORAL_")}


def checked(
    home: Home, environ: Mapping[str, str], *, parts: frozenset[str] = ALL_PARTS, overridable: bool
) -> Credentials:
    """The parts' passwords, after a look at what can be seen to be wrong before anything starts.

    Raises: StackError.
    """
    replaced = overridable and external_postgres(environ) is not None
    if "postgres" in parts and not replaced:
        postgres_cluster.check_cluster(home.postgres)  # a foreign cluster before a lost password, which is ours alone
    if "temporal" in parts:
        temporal_server.synchronous_setting(environ)
    return load_credentials(home)


async def start_data(
    supervisor: Supervisor,
    home: Home,
    book: PortBook,
    environ: Mapping[str, str],
    credentials: Credentials,
    *,
    parts: frozenset[str] = ALL_PARTS,
    overridable: bool,
    when_stores_answer: Callable[[DataParts], Awaitable[None]] | None = None,
    temporal_found: asyncio.Event | None = None,
) -> DataParts:
    """Start the parts at once; `overridable` lets the environment replace them.

    `when_stores_answer` runs once Postgres and Valkey are ready and all addresses are known, beside Temporal's start.
    `temporal_found` is set once its program is there, which may have to be fetched or built first.

    Raises: StackError.
    """
    start = DataStart(supervisor, home, book, environ, credentials, overridable)
    temporal_known: asyncio.Future[tuple[TemporalAddress, bool] | None] = asyncio.get_running_loop().create_future()
    started = DataParts()

    async def start_temporal() -> None:
        found = temporal_found or asyncio.Event()
        if "temporal" in parts:
            await start.temporal(temporal_known, found)
        else:
            temporal_known.set_result(None)
            found.set()

    async def start_stores() -> None:
        nonlocal started
        database, redis_url = await together(
            start.postgres() if "postgres" in parts else nothing(), start.valkey() if "valkey" in parts else nothing()
        )
        temporal = await temporal_known
        started = DataParts(
            postgres=database,
            redis_url=redis_url,
            temporal=temporal[0] if temporal else None,
            temporal_is_embedded=temporal[1] if temporal else True,
            pids=supervisor.pids,
        )
        if when_stores_answer is not None:
            await when_stores_answer(started)

    await together(start_temporal(), start_stores())
    return started
