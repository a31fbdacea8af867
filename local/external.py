"""Parts that the environment replaces: `DATABASE_URL`, `REDIS_URL`, and Temporal's own client environment.

Each is checked for an answer before anything else starts, so that a wrong address is one clear line at once.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from local.errors import StackError
from local.postgres import PostgresAddress
from local.probes import port_open
from local.temporal_server import TemporalAddress

_DEFAULT_PORTS = {"postgresql": 5432, "postgres": 5432, "redis": 6379, "rediss": 6379}
_TRIES = 6
_TRY_AGAIN_SECONDS = 0.5


def external_postgres(environ: Mapping[str, str]) -> PostgresAddress | None:
    """`DATABASE_URL` with the other roles' own variables; a role without one uses `DATABASE_URL`."""
    app = environ.get("DATABASE_URL")
    if not app:
        return None
    return PostgresAddress(
        admin=environ.get("DATABASE_ADMIN_URL") or app,
        owner=environ.get("DATABASE_OWNER_URL") or app,
        app=app,
        relay=environ.get("DATABASE_RELAY_URL") or app,
    )


def external_temporal(environ: Mapping[str, str]) -> TemporalAddress | None:
    """The server that Temporal's own client configuration names (variables or profile file), if it names one.

    Only address and namespace are read here; TLS and keys stay in the environment for the programs' own clients.

    Raises: StackError when the configuration is broken.
    """
    if _names_nothing(environ):
        return None
    # 0.2 to 0.4 s of import: done while Postgres starts, in a thread.
    from temporalio.envconfig import ClientConfigProfile

    try:
        profile = ClientConfigProfile.load(override_env_vars=environ)
    except Exception as error:  # the SDK's ConfigError is private to its bridge
        raise StackError(f"Temporal's client configuration: {' '.join(str(error).split())}") from error
    if not profile.address:
        return None
    return TemporalAddress(
        address=profile.address,
        namespace=profile.namespace or "default",
        ui=environ.get("PERDURE_TEMPORAL_UI") or None,
        metrics=None,
    )


def _names_nothing(environ: Mapping[str, str]) -> bool:
    """No variable of Temporal's and no profile file where its clients look for one: the common case costs nothing."""
    if any(name.startswith("TEMPORAL_") for name in environ):
        return False
    home = Path(environ.get("HOME") or Path.home())
    folders = (Path(environ.get("XDG_CONFIG_HOME") or home / ".config"), home / "Library" / "Application Support")
    return not any((folder / "temporalio" / "temporal.toml").exists() for folder in folders)


async def must_answer(name: str, location: str) -> None:
    """Wait a few seconds for the server behind a URL or a host:port.

    Raises: StackError that names the variable to correct, never the credentials in it.
    """
    host, port = host_and_port(name, location)
    if not host:
        return  # a Unix socket; the first real connection will tell
    for _ in range(_TRIES):
        if await port_open(host, port):
            return
        await asyncio.sleep(_TRY_AGAIN_SECONDS)
    raise StackError(f"{name} names {host}:{port}, where nothing answers; start that server or correct {name}")


def host_and_port(name: str, location: str) -> tuple[str, int]:
    """Where a connection string points; the host is empty for a Unix socket.

    Raises: StackError when it cannot be read.
    """
    try:
        parts = urlsplit(location if "://" in location else f"temporal://{location}")
        return parts.hostname or "", parts.port or _DEFAULT_PORTS.get(parts.scheme, 7233)
    except ValueError as error:
        raise StackError(f"{name} is not an address: {error}") from error
