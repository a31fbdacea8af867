"""The embedded Temporal server: `temporal server start-dev` on a SQLite file in the data folder.

Invariants: histories survive kill -9 of the server (WAL; `synchronous=normal` may lose the last moments in a power cut,
never the file); every setting that a measured figure rests on is in this file; its HTTP API, which cannot be closed,
refuses every host name but one that no web page knows, and its own Web UI, which refuses none, is not started (ADR 29).
"""

import json
import re
import secrets
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perdure.local.child import ChildSpec
from perdure.local.data_dir import Home, StackError
from perdure.local.ports import HOST, PortBook, grpc_lives, http_get

NAMESPACE = "default"
STOP_RANK = 2

SEARCH_ATTRIBUTES = ("PerdureTenant", "PerdureAgent", "PerdureConversation", "PerdureStatus")
"""All of type Keyword; they persist with the file, registering them again is harmless."""

DYNAMIC_CONFIG = {
    # The dev server polls these queues slowly: a turn of nine activities took 550 ms before, 72 ms after.
    "history.transferProcessorMaxPollRPS": 2000,
    "history.timerProcessorMaxPollRPS": 2000,
    "history.visibilityProcessorMaxPollRPS": 2000,
    "matching.numTaskqueueReadPartitions": 1,
    "matching.numTaskqueueWritePartitions": 1,
    # A run that continues as new within a second of its start is held back for the rest of that second: a decision
    # that came soon after the pause took 1.95 s to reach its call, 0.05 s without.
    "history.workflowIdReuseMinimalInterval": "1ms",
    # Limits meant for many tenants on one cluster; here they would only slow one person down.
    "frontend.rps": 10_000,
    "frontend.namespaceRPS": 10_000,
    "matching.rps": 20_000,
    "history.rps": 20_000,
    # Activities on the workflow's own queue start with the workflow task's answer: 0.70 of the CPU of a turn.
    "system.enableActivityEagerExecution": True,
    # Else a run that is deleted stays until the server has next written down how far its queues are, each half minute.
    "history.transferProcessorEnsureCloseBeforeDelete": False,
}
_NAMESPACE_PAGE = f"/api/v1/namespaces/{NAMESPACE}"
_SHOWN = re.compile(r"level=(WARN|ERROR|FATAL)|^(panic:|Error:|error:)|\[FATAL\]")


@dataclass(frozen=True, slots=True)
class TemporalAddress:
    """Where a Temporal server is reached."""

    address: str
    """host:port of the gRPC frontend."""
    namespace: str
    ui: str | None
    """The Web UI, where it is known."""
    metrics: str | None
    """The server's own Prometheus page: frontend requests by operation are counted there."""


@dataclass(frozen=True, slots=True)
class TemporalPorts:
    """The ports of one dev server and of the Web UI's door."""

    frontend: int
    ui: int
    """Where the door to the Web UI listens (temporal_web.py)."""
    http: int
    metrics: int
    api_host: str = field(default_factory=lambda: f"{secrets.token_hex(16)}.perdure.invalid", repr=False)
    """The only host name that the HTTP API answers to."""


def take_ports(book: PortBook) -> TemporalPorts:
    """This data folder's ports for Temporal."""
    return TemporalPorts(
        frontend=book.take("temporal"),
        ui=book.take("temporal_ui"),
        http=book.take("temporal_http"),
        metrics=book.take("temporal_metrics"),
    )


def address(ports: TemporalPorts) -> TemporalAddress:
    """What the programs and a person need to know of it."""
    return TemporalAddress(
        address=f"{HOST}:{ports.frontend}",
        namespace=NAMESPACE,
        ui=f"http://{HOST}:{ports.ui}",
        metrics=f"http://{HOST}:{ports.metrics}/metrics",
    )


def command(program: Path, database: str, ports: TemporalPorts, synchronous: str = "normal") -> tuple[str, ...]:
    """The whole command line; `database` is relative to the working folder, SQLite reads a path as a URI."""
    flags = [
        "--disable-config-file", "--disable-config-env",
        "--ip", HOST, "--port", str(ports.frontend), "--headless",
        "--http-port", str(ports.http), "--metrics-port", str(ports.metrics),
        "--db-filename", database, "--namespace", NAMESPACE, "--log-level", "warn",
    ]  # fmt: skip
    for attribute in SEARCH_ATTRIBUTES:
        flags += ["--search-attribute", f"{attribute}=Keyword"]
    for pragma in ("journal_mode=wal", f"synchronous={synchronous}"):
        flags += ["--sqlite-pragma", pragma]
    for name, value in {**DYNAMIC_CONFIG, "frontend.httpAllowedHosts": [ports.api_host]}.items():
        flags += ["--dynamic-config-value", f"{name}={json.dumps(value)}"]
    return (str(program), "server", "start-dev", *flags)


def synchronous_setting(environ: Mapping[str, str]) -> str:
    """SQLite's `synchronous`: `normal`, or `full` where a power cut may not lose even the last moments (slower).

    Raises: StackError for any other value of PERDURE_TEMPORAL_SYNCHRONOUS.
    """
    value = environ.get("PERDURE_TEMPORAL_SYNCHRONOUS") or "normal"
    if value not in ("normal", "full"):
        raise StackError(f"PERDURE_TEMPORAL_SYNCHRONOUS is {value!r}; it must be normal or full")
    return value


def child_spec(home: Home, program: Path, ports: TemporalPorts, synchronous: str = "normal") -> ChildSpec:
    """The server as a child; ready once the namespace answers with all search attributes."""

    async def ready(_pid: int) -> bool:
        answer = await http_get(HOST, ports.http, _NAMESPACE_PAGE, ports.api_host)
        return answer is not None and answer[0] == 200 and all(name in answer[1] for name in SEARCH_ATTRIBUTES)

    async def lives(_pid: int) -> bool:
        return await grpc_lives(HOST, ports.frontend)  # without a look at its database, which may be slow

    return ChildSpec(
        role="temporal",
        command=command(program, home.temporal_db.name, ports, synchronous),
        environ={"PATH": "/usr/bin:/bin", "HOME": str(home.root), "TZ": "UTC"},
        cwd=home.root,
        log=home.log("temporal"),
        ready=ready,
        lives=lives,
        # It drains for about 2.7 s.
        stop_steps=((signal.SIGTERM, 10.0),),
        stop_rank=STOP_RANK,
        shows=_SHOWN,
        detail=f"{HOST}:{ports.frontend}",
    )
