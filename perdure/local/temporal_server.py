"""The embedded Temporal server: `temporal server start-dev` with a SQLite file in the data folder.

Invariants: Histories survive kill -9 of the server. (With WAL, `synchronous=normal` may lose the last moments in a
power cut, never the file.) Every setting that a measured figure depends on is in this file. Its HTTP API, which cannot
be closed, rejects every host name except one that no web page knows. Its own Web UI, which rejects none, is not started
(ADR 29).
"""

import json
import re
import secrets
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perdure.local.child import ChildSpec
from perdure.local.data_dir import DataDir, StackError
from perdure.local.ports import HOST, PortFile, grpc_responds, http_get

NAMESPACE = "default"
STOP_RANK = 2

SEARCH_ATTRIBUTES = ("PerdureTenant", "PerdureAgent", "PerdureConversation", "PerdureStatus")
"""All have the type Keyword. They are stored in the file; registering them again is harmless."""

DYNAMIC_CONFIG = {
    # The dev server polls these queues slowly: a turn of nine activities took 550 ms before, 72 ms after.
    "history.transferProcessorMaxPollRPS": 2000,
    "history.timerProcessorMaxPollRPS": 2000,
    "history.visibilityProcessorMaxPollRPS": 2000,
    "matching.numTaskqueueReadPartitions": 1,
    "matching.numTaskqueueWritePartitions": 1,
    # A run that continues as new within a second of its start is delayed for the rest of that second. A decision soon
    # after the pause took 1.95 s to reach its call, 0.05 s without.
    "history.workflowIdReuseMinimalInterval": "1ms",
    # Limits for many tenants on one cluster; here they would only slow one user down.
    "frontend.rps": 10_000,
    "frontend.namespaceRPS": 10_000,
    "matching.rps": 20_000,
    "history.rps": 20_000,
    # Activities on the workflow's own queue start with the response of the workflow task: 0.70 of the CPU of a turn.
    "system.enableActivityEagerExecution": True,
    # Otherwise a deleted run stays until the server next stores its queue positions, every half minute.
    "history.transferProcessorEnsureCloseBeforeDelete": False,
    # No worker takes Nexus operations. The HTTP API would hold each dispatch for 59 s, whatever its Host. Since no
    # request has so much time left, the server answers at once.
    "component.nexusoperations.limit.dispatch.task.timeout.min": "24h",
}
_NAMESPACE_PAGE = f"/api/v1/namespaces/{NAMESPACE}"
_SHOWN = re.compile(r"level=(WARN|ERROR|FATAL)|^(panic:|Error:|error:)|\[FATAL\]")


@dataclass(frozen=True, slots=True)
class TemporalAddress:
    """The address of a Temporal server."""

    address: str
    """host:port of the gRPC frontend."""
    namespace: str
    ui: str | None
    """The Web UI, if known."""
    metrics: str | None
    """The server's own Prometheus page, with the frontend requests by operation."""


_PRAGMAS = ("cache_size=-65536", "mmap_size=268435456", "temp_store=memory")
"""SQLite keeps 64 MB of pages and maps the first 256 MB of its file. The server took 0.87 of the CPU (measured)."""
_GOGC = "200"
"""Fewer garbage collections of the server."""


@dataclass(frozen=True, slots=True)
class TemporalPorts:
    """The ports of one dev server and of the proxy of its Web UI."""

    frontend: int
    ui: int
    """The port of the Web UI's proxy (temporal_web.py)."""
    http: int
    metrics: int
    api_host: str = field(default_factory=lambda: f"{secrets.token_hex(16)}.perdure.invalid", repr=False)
    """The only host name that the HTTP API accepts."""


def take_ports(port_file: PortFile) -> TemporalPorts:
    """Returns this data folder's ports for Temporal."""
    return TemporalPorts(
        frontend=port_file.take("temporal"),
        ui=port_file.take("temporal_ui"),
        http=port_file.take("temporal_http"),
        metrics=port_file.take("temporal_metrics"),
    )


def address(ports: TemporalPorts) -> TemporalAddress:
    """Returns Temporal's gRPC address and namespace for the programs, and the URLs of its Web UI and metrics."""
    return TemporalAddress(
        address=f"{HOST}:{ports.frontend}",
        namespace=NAMESPACE,
        ui=f"http://{HOST}:{ports.ui}",
        metrics=f"http://{HOST}:{ports.metrics}/metrics",
    )


def command(program: Path, database: str, ports: TemporalPorts, synchronous: str = "normal") -> tuple[str, ...]:
    """Returns the whole command line. `database` is relative to the working folder, because SQLite reads a path as a
    URI."""
    flags = [
        "--disable-config-file", "--disable-config-env",
        "--ip", HOST, "--port", str(ports.frontend), "--headless",
        "--http-port", str(ports.http), "--metrics-port", str(ports.metrics),
        "--db-filename", database, "--namespace", NAMESPACE, "--log-level", "warn",
    ]  # fmt: skip
    for attribute in SEARCH_ATTRIBUTES:
        flags += ["--search-attribute", f"{attribute}=Keyword"]
    for pragma in ("journal_mode=wal", f"synchronous={synchronous}", *_PRAGMAS):
        flags += ["--sqlite-pragma", pragma]
    for name, value in {**DYNAMIC_CONFIG, "frontend.httpAllowedHosts": [ports.api_host]}.items():
        flags += ["--dynamic-config-value", f"{name}={json.dumps(value)}"]
    return (str(program), "server", "start-dev", *flags)


def synchronous_setting(environ: Mapping[str, str]) -> str:
    """Returns SQLite's `synchronous`: `normal`, or the slower `full`, which loses nothing in a power cut.

    Raises: StackError for any other value of PERDURE_TEMPORAL_SYNCHRONOUS.
    """
    value = environ.get("PERDURE_TEMPORAL_SYNCHRONOUS") or "normal"
    if value not in ("normal", "full"):
        raise StackError(f"PERDURE_TEMPORAL_SYNCHRONOUS is {value!r}; it must be normal or full")
    return value


def child_spec(home: DataDir, program: Path, ports: TemporalPorts, synchronous: str = "normal") -> ChildSpec:
    """Returns the child for the server. It is ready when the namespace responds with all search attributes."""

    async def ready(_pid: int) -> bool:
        answer = await http_get(HOST, ports.http, _NAMESPACE_PAGE, ports.api_host)
        return answer is not None and answer[0] == 200 and all(name in answer[1] for name in SEARCH_ATTRIBUTES)

    async def responds(_pid: int) -> bool:
        return await grpc_responds(HOST, ports.frontend)  # without a query of its database, which may be slow

    return ChildSpec(
        role="temporal",
        command=command(program, home.temporal_db.name, ports, synchronous),
        environ={"PATH": "/usr/bin:/bin", "HOME": str(home.root), "TZ": "UTC", "GOGC": _GOGC},
        cwd=home.root,
        log=home.log("temporal"),
        ready=ready,
        responds=responds,
        # It drains for about 2.7 s.
        stop_steps=((signal.SIGTERM, 10.0),),
        stop_rank=STOP_RANK,
        ports=(ports.frontend, ports.http, ports.metrics),
        shown_lines=_SHOWN,
        detail=f"{HOST}:{ports.frontend}",
        advice=f"; if its data is damaged, restore {home.temporal_db} from a backup",
    )
