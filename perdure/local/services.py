"""The three data parts, embedded or replaced, and their addresses for the programs.

Postgres, Valkey and Temporal start at the same time and do not depend on each other.
"""

import asyncio
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from perdure.local import postgres, temporal_server
from perdure.local import postgres as postgres_cluster
from perdure.local.child import ChildSpec
from perdure.local.data_dir import Credentials, DataDir, StackError, load_credentials, write_private
from perdure.local.ports import HOST, PortFile, PortInUse, port_open, valkey_is_ready, valkey_responds
from perdure.local.postgres import PostgresAddress, choose_launch
from perdure.local.processes import postgres_install, valkey_server
from perdure.local.supervisor import Supervisor, run_together
from perdure.local.temporal_binary import Source, built, find_temporal
from perdure.local.temporal_download import downloaded
from perdure.local.temporal_server import TemporalAddress, TemporalPorts

ALL_PARTS = frozenset({"postgres", "valkey", "temporal"})

_ADDRESS_VARIABLES = ("DATABASE_URL", "DATABASE_OWNER_URL", "DATABASE_RELAY_URL", "DATABASE_ADMIN_URL", "REDIS_URL")
_DEFAULT_PORTS = {"postgresql": 5432, "postgres": 5432, "redis": 6379, "rediss": 6379}
_ATTEMPTS = 6
_RETRY_SECONDS = 0.5
STOP_RANK = 3
# Valkey marks warnings with '#' after the time: "1234:M 21 Nov 2026 10:12:00.000 # Out Of Memory ..."
_SHOWN = re.compile(r"^\d+:\w .*? # ")


@dataclass(frozen=True, slots=True)
class DataParts:
    """The addresses of the data parts; None for a part that was not requested."""

    postgres: PostgresAddress | None = None
    redis_url: str | None = None
    temporal: TemporalAddress | None = None
    temporal_is_embedded: bool = True
    lost_history: Path | None = None
    """The embedded Temporal's database, if it was missing or empty although the database of the turns exists."""
    pids: Callable[[], Mapping[str, int]] = dict
    """The live processes of the embedded parts, by role."""

    def environ(self, base: Mapping[str, str]) -> dict[str, str]:
        """Returns `base` with the addresses in the form that the programs expect; the superuser's is not included."""
        kept = {name: value for name, value in base.items() if name not in _ADDRESS_VARIABLES}
        if self.postgres is not None:
            kept["DATABASE_URL"] = self.postgres.app
            kept["DATABASE_OWNER_URL"] = self.postgres.owner
            kept["DATABASE_RELAY_URL"] = self.postgres.relay
        if self.redis_url is not None:
            kept["REDIS_URL"] = self.redis_url
        if self.temporal is not None:
            if self.temporal_is_embedded:
                # Remaining TLS or key settings, or a profile file, must not reach clients of the embedded server.
                kept = {name: value for name, value in kept.items() if not name.startswith("TEMPORAL_")}
                kept["TEMPORAL_CONFIG_FILE"] = os.devnull
            kept["TEMPORAL_ADDRESS"] = self.temporal.address
            kept["TEMPORAL_NAMESPACE"] = self.temporal.namespace
            kept["PERDURE_TEMPORAL_UI"] = self.temporal.ui or ""
        return kept

    def admin_environ(self, base: Mapping[str, str]) -> dict[str, str]:
        """Returns the same with the superuser's connection string, only for the prepare step."""
        admin = self.postgres.admin if self.postgres is not None else ""
        return {**self.environ(base), **({"DATABASE_ADMIN_URL": admin} if admin else {})}


def without_addresses(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment for processes that are not part of Perdure: without access to the stores or Temporal."""
    return {
        name: value
        for name, value in environ.items()
        if name not in _ADDRESS_VARIABLES and not name.startswith("TEMPORAL_")
    }


def load_checked_credentials(
    home: DataDir, environ: Mapping[str, str], *, parts: frozenset[str] = ALL_PARTS, overridable: bool
) -> Credentials:
    """Returns the parts' passwords, after checks for errors that are visible before the start.

    Raises: StackError.
    """
    replaced = overridable and external_postgres(environ) is not None
    if "postgres" in parts and not replaced:
        # a foreign cluster is reported before a lost password, which concerns only our own
        postgres_cluster.check_cluster(home.postgres)
    if "temporal" in parts:
        temporal_server.synchronous_setting(environ)
    return load_credentials(home, needs_cluster="postgres" in parts and not replaced)


async def start_data(
    supervisor: Supervisor,
    home: DataDir,
    port_file: PortFile,
    environ: Mapping[str, str],
    credentials: Credentials,
    *,
    parts: frozenset[str] = ALL_PARTS,
    overridable: bool,
    when_stores_are_ready: Callable[[DataParts], Awaitable[None]] | None = None,
    temporal_program_found: asyncio.Event | None = None,
) -> DataParts:
    """Starts the parts together; with `overridable`, the environment can replace them.

    `when_stores_are_ready` runs once Postgres and Valkey are ready and all addresses are known, in parallel with
    Temporal's start. If Temporal's database is missing although there can be open turns, Temporal starts after it: the
    new database would hide the loss from the next start. `temporal_program_found` is set once its program exists, which
    may have to be downloaded or built first.

    Raises: StackError.
    """
    start = DataStart(supervisor, home, port_file, environ, credentials, overridable)
    address: asyncio.Future[tuple[TemporalAddress, bool] | None] = asyncio.get_running_loop().create_future()
    program_found = temporal_program_found or asyncio.Event()
    turns_are_checked = asyncio.Event()
    if (missing_history := start.missing_history()) is None:
        turns_are_checked.set()
    if "temporal" in parts:
        temporal: Coroutine[Any, Any, None] = start.temporal(address, program_found, turns_are_checked)
    else:
        address.set_result(None)
        program_found.set()
        temporal = _no_part()
    started: DataParts
    stores = _start_stores(start, parts, address, missing_history, when_stores_are_ready)
    started, _ = await run_together(_set_after(stores, turns_are_checked), temporal)
    return started


async def _set_after(work: Awaitable[DataParts], event: asyncio.Event) -> DataParts:
    result = await work
    event.set()
    return result


async def _start_stores(
    start: "DataStart",
    parts: frozenset[str],
    temporal_address: "asyncio.Future[tuple[TemporalAddress, bool] | None]",
    lost_history: Path | None,
    when_stores_are_ready: Callable[[DataParts], Awaitable[None]] | None,
) -> DataParts:
    """Starts Postgres and Valkey. Returns the addresses of all parts after the callback for the stores has finished."""
    database, redis_url = await run_together(
        start.postgres() if "postgres" in parts else _no_part(), start.valkey() if "valkey" in parts else _no_part()
    )
    temporal = await temporal_address
    started = DataParts(
        postgres=database,
        redis_url=redis_url,
        temporal=temporal[0] if temporal else None,
        temporal_is_embedded=temporal[1] if temporal else True,
        lost_history=lost_history if temporal and temporal[1] else None,
        pids=start.supervisor.pids,
    )
    if when_stores_are_ready is not None:
        await when_stores_are_ready(started)
    return started


def temporal_sources(environ: Mapping[str, str]) -> dict[str, Source]:
    """The sources, in order, if there is no Temporal server program yet."""
    return {"download": downloaded(environ), "build": built(environ)}


@dataclass(frozen=True, slots=True)
class DataStart:
    """One start of the data parts. A part is found or downloaded, prepared and launched, or it is the one that the
    environment names."""

    supervisor: Supervisor
    home: DataDir
    port_file: PortFile
    environ: Mapping[str, str]
    credentials: Credentials
    overridable: bool
    """True if the environment can replace a part."""
    began: float = field(default_factory=time.monotonic)

    def missing_history(self) -> Path | None:
        """Returns Temporal's database if it is missing or empty although the database of the turns exists."""
        file = self.home.temporal_db
        external = self.overridable and external_postgres(self.environ) is not None
        if not external and not postgres_cluster.check_cluster(self.home.postgres):
            return None
        return None if file.is_file() and file.stat().st_size else file

    async def postgres(self) -> PostgresAddress:
        """Returns when it responds.

        Raises: StackError.
        """
        external = external_postgres(self.environ) if self.overridable else None
        if external is not None:
            await wait_until_reachable("DATABASE_URL", external.app)
            self.supervisor.console.part("postgres", "yours", detail="DATABASE_URL")
            return external
        launch = await asyncio.to_thread(choose_launch, postgres_install(), self.home.root)
        await postgres_cluster.make_ready(self.home, launch, self.credentials)
        port = self.port_file.take("postgres")
        await self.supervisor.launch(postgres.postgres_spec(self.home, launch, port), self.began)
        return postgres.postgres_address(port, self.credentials)

    async def valkey(self) -> str:
        """Returns its URL when it responds.

        Raises: StackError.
        """
        external = self.environ.get("REDIS_URL") if self.overridable else None
        if external:
            await wait_until_reachable("REDIS_URL", external)
            self.supervisor.console.part("valkey", "yours", detail="REDIS_URL")
            return external
        port, password = self.port_file.take("valkey"), self.credentials.valkey
        await self.supervisor.launch(valkey_spec(self.home, valkey_server(), port, password), self.began)
        return valkey_url(port, password)

    async def temporal(
        self,
        address: "asyncio.Future[tuple[TemporalAddress, bool] | None]",
        program_found: asyncio.Event,
        turns_are_checked: asyncio.Event,
    ) -> None:
        """Returns when it responds.

        `address` receives its address, and whether it is embedded, as soon as that is settled. `program_found` is set
        once its program exists. It is launched when `turns_are_checked` is set.

        Raises: StackError.
        """
        external = await asyncio.to_thread(external_temporal, self.environ) if self.overridable else None
        if external is not None:
            address.set_result((external, False))
            program_found.set()
            await wait_until_reachable("TEMPORAL_ADDRESS", external.address)
            self.supervisor.console.part("temporal", "yours", detail=external.address)
            return
        synchronous = temporal_server.synchronous_setting(self.environ)
        ports = temporal_server.take_ports(self.port_file)
        address.set_result((temporal_server.address(ports), True))
        program = await find_temporal(self.environ, self.supervisor.console, temporal_sources(self.environ))
        program_found.set()
        await turns_are_checked.wait()
        if self.home.temporal_db.is_file() and not self.home.temporal_db.stat().st_size:
            self.home.temporal_db.unlink()  # the server creates its tables only if there is no file
        await self.supervisor.launch(
            temporal_server.child_spec(self.home, program.path, ports, synchronous), self.began
        )
        await self._web(program.path, ports)

    async def _web(self, program: Path, ports: TemporalPorts) -> None:
        from perdure.local.temporal_web import (  # here: other commands do not need h11
            WebPages,
            WebProxy,
            backend_for,
        )

        pages = WebPages(self.home.root / "temporal-ui", program)
        proxy = WebProxy(backend_for(ports.http, ports.api_host, pages))
        self.supervisor.close_callbacks += [proxy.close, pages.close]
        try:
            await proxy.open(HOST, ports.ui)
        except OSError as error:
            raise PortInUse(f"Temporal's Web UI cannot listen on {HOST}:{ports.ui}: {error.strerror}") from error


async def _no_part() -> None:
    """The placeholder of a part that was not requested."""


def external_postgres(environ: Mapping[str, str]) -> PostgresAddress | None:
    """Returns the addresses in the roles' variables, or None without `DATABASE_URL`. The owner and the relay use
    `DATABASE_URL` if they have none. Without `DATABASE_ADMIN_URL` the roles and the database must exist."""
    app = environ.get("DATABASE_URL")
    if not app:
        return None
    return PostgresAddress(
        admin=environ.get("DATABASE_ADMIN_URL", ""),
        owner=environ.get("DATABASE_OWNER_URL") or app,
        app=app,
        relay=environ.get("DATABASE_RELAY_URL") or app,
    )


def external_temporal(environ: Mapping[str, str]) -> TemporalAddress | None:
    """Returns the server in Temporal's own client configuration (variables or profile file), or None.

    Only address and namespace are read here; TLS and keys stay in the environment for the programs' own clients.

    Raises: StackError if the configuration is invalid.
    """
    if _names_no_server(environ):
        return None
    # 0.2 to 0.4 s of import, in a thread while Postgres starts.
    from temporalio.envconfig import ClientConfigProfile

    try:
        profile = ClientConfigProfile.load(override_env_vars=environ)
    except Exception as error:  # the SDK's ConfigError is private to its bridge
        raise StackError(f"invalid Temporal client configuration: {' '.join(str(error).split())}") from error
    if not profile.address:
        return None
    return TemporalAddress(
        address=profile.address,
        namespace=profile.namespace or "default",
        ui=environ.get("PERDURE_TEMPORAL_UI") or None,
        metrics=None,
    )


def _names_no_server(environ: Mapping[str, str]) -> bool:
    """Returns whether there is no Temporal variable and no profile file for its clients: the common case costs
    not requested."""
    if any(name.startswith("TEMPORAL_") for name in environ):
        return False
    home = Path(environ.get("HOME") or Path.home())
    folders = (Path(environ.get("XDG_CONFIG_HOME") or home / ".config"), home / "Library" / "Application Support")
    return not any((folder / "temporalio" / "temporal.toml").exists() for folder in folders)


async def wait_until_reachable(name: str, location: str) -> None:
    """Waits a few seconds for the server at a URL or a host:port.

    The environment can replace parts with `DATABASE_URL`, `REDIS_URL`, and Temporal's own client environment. Each is
    checked before anything else starts, so that a wrong address is one clear line at once.

    Raises: StackError that names the variable to correct, never the credentials in it.
    """
    host, port = host_and_port(name, location)
    if not host:
        return  # a Unix socket; the first real connection will show
    for _ in range(_ATTEMPTS):
        if await port_open(host, port):
            return
        await asyncio.sleep(_RETRY_SECONDS)
    raise StackError(f"{name} is {host}:{port}, but no server answers there; start the server or correct {name}")


def host_and_port(name: str, location: str) -> tuple[str, int]:
    """Returns the host and port of a connection string; the host is empty for a Unix socket.

    Raises: StackError if it is invalid.
    """
    try:
        parts = urlsplit(location if "://" in location else f"temporal://{location}")
        return parts.hostname or "", parts.port or _DEFAULT_PORTS.get(parts.scheme, 7233)
    except ValueError:  # its text can quote a part of the password
        raise StackError(f"{name} is not a valid address; correct its host or its port") from None


def valkey_url(port: int, password: str) -> str:
    """Returns the connection string of the server on this port."""
    return f"redis://:{password}@{HOST}:{port}/0"


def valkey_spec(home: DataDir, program: Path, port: int, password: str) -> ChildSpec:
    """Returns the child for the server. Writes its configuration file, including the password, with mode 0600. Every
    write is in the server's append-only file. Its password is in a file that only its owner can read."""
    home.valkey.mkdir(mode=0o700, exist_ok=True)
    configuration = home.valkey / "valkey.conf"
    settings = (
        f"bind {HOST}",
        f"port {port}",
        "dir ./",  # relative to the child's working folder, because a path would need quoting
        "appendonly yes",
        'save ""',
        f"requirepass {password}",
        "daemonize no",
        "loglevel notice",
    )
    write_private(configuration, "\n".join(settings) + "\n")

    async def ready(_pid: int) -> bool:
        return await valkey_is_ready(HOST, port, password)

    async def responds(_pid: int) -> bool:
        return await valkey_responds(HOST, port, password)

    return ChildSpec(
        role="valkey",
        command=(str(program), str(configuration)),
        environ={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC"},
        cwd=home.valkey,
        log=home.log("valkey"),
        ready=ready,
        responds=responds,
        stop_steps=((signal.SIGTERM, 10.0),),
        stop_rank=STOP_RANK,
        ports=(port,),
        death_signal=signal.SIGTERM,
        shown_lines=_SHOWN,
        detail=f"{HOST}:{port}",
        advice=f"; if its data is damaged, move {home.valkey} away; it contains live tokens, no answers",
    )
