"""`perdure status`: checks whether every process of the stack is running and responds."""

import asyncio
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import typer

from perdure.cli.connection import Environment, Role, connect
from perdure.cli.terminal import OTHER, AsJson, fail, say, say_json, table
from perdure.client import ApiError, Client
from perdure.core.status import HANG_SECONDS, disk_fault
from perdure.local.config import least_free_bytes, own_environ
from perdure.local.data_dir import DataDir
from perdure.local.ports import grpc_responds, http_get, port_open, postgres_responds, valkey_responds
from perdure.local.processes import alive, is_stopped, running_children
from perdure.schemas.status import DeploymentStatus

_PARTS = (("api", "/readyz"), ("temporal", None), ("temporal_ui", "/"), ("postgres", None), ("redis", None))
"""Addresses in run.json, each with a page to request if that shows more than an open port."""
_ROLE_BY_PART = {"redis": "valkey"}
"""Names of parts in the pids of run.json, if they differ."""
_DEFAULT_PORTS = {"postgresql": 5432, "postgres": 5432, "redis": 6379, "rediss": 6379, "http": 80, "https": 443}
_WORKER_WAIT_SECONDS = 5.0
"""A worker that has just started appears in Temporal's list a little later."""
_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Health:
    """The health of one part or process."""

    name: str
    well: bool
    state: str
    """`answers`, `silent`, `runs`, `hangs`, `not ready`, `starting or stopping`, `nearly full: …`, or
    `still running without a supervisor`."""
    pid: int | None
    address: str
    """The address without credentials."""

    @property
    def display_address(self) -> str:
        """The address for display, without `redis://`, which names the protocol."""
        return self.address.removeprefix("redis://")


def status(as_json: AsJson = False) -> None:
    """Show whether all parts of the stack work. Lists addresses and processes, and the API's report on queues, workers
    and MCP servers; with PERDURE_URL, only that API's report. The exit code is 0 if all parts work, otherwise 1."""
    environment = Environment.read()
    if environment.run is None and environment.url is not None:
        raise typer.Exit(_show_remote(as_json))
    if environment.run is None:
        if not as_json:
            raise fail(environment.unreachable_reason(), OTHER)
        health, deployment = _leftover_processes(environment), None
    else:
        health = asyncio.run(_check_parts(environment.run, DataDir(environment.home)))
        deployment = _deployment(environment.run)
    health += disk_health(environment.home, least_free_bytes(own_environ()))
    is_well = environment.run is not None and all(part.well for part in health)
    is_well = is_well and (deployment is None or deployment.well)
    if as_json:
        say_json({"well": is_well, "home": str(environment.home), **_status_json(environment, health, deployment)})
    else:
        _print_status(environment, health, deployment)
        logs = environment.home / "logs"
        say("All parts work." if is_well else f"Some parts do not work; the logs are in {logs}")
    raise typer.Exit(0 if is_well else OTHER)


def _status_json(environment: Environment, health: list[Health], deployment: DeploymentStatus | None) -> dict[str, Any]:
    run = environment.run
    if run is None:
        context: dict[str, Any] = {"message": environment.unreachable_reason()}
    else:
        context = {"routing": run.get("routing"), "left_out": run.get("left_out", [])}
    parts = [
        {"name": part.name, "well": part.well, "state": part.state, "pid": part.pid, "address": part.address}
        for part in health
    ]
    return {**context, "parts": parts, **(deployment_json(deployment) if deployment is not None else {})}


def _print_status(environment: Environment, health: list[Health], deployment: DeploymentStatus | None) -> None:
    rows = [
        (_ROLE_BY_PART.get(part.name, part.name), part.state, part.pid or "", part.display_address) for part in health
    ]
    table(("part", "state", "pid", "address"), rows, "No processes.")
    if deployment is not None:
        show_deployment(deployment)
    for line in (environment.run or {}).get("left_out", ()):
        say(line)


def _show_remote(as_json: bool) -> int:
    """Shows what a remote API reports about its deployment. Returns the exit code.

    Raises: ApiError.
    """
    with connect(Role.REVIEWER) as client:
        deployment = deployment_of(client)
    if as_json:
        say_json(
            {
                "well": deployment.well,
                "parts": deployment.model_dump(mode="json")["parts"],
                **deployment_json(deployment),
            }
        )
    else:
        show_deployment(deployment)
        say("All parts work." if deployment.well else "Some parts do not work.")
    return 0 if deployment.well else OTHER


def _deployment(run: dict[str, Any]) -> DeploymentStatus | None:
    """Returns what this stack's API reports, or None if it does not respond, which its own row shows."""
    url, token = run.get("api"), (run.get("tokens") or {}).get(Role.REVIEWER.value)
    if not url or not token:
        return None
    with Client(str(url), token, patience_seconds=0.0) as client, suppress(ApiError):
        return deployment_of(client)
    return None


def _leftover_processes(environment: Environment) -> list[Health]:
    """Returns processes that run without a stack. A supervisor that was killed cannot end its children."""
    processes = running_children(DataDir(environment.home).registry_file)
    state = "still running without a supervisor" if processes.supervisor is None else "starting or stopping"
    return [Health(role, False, state, pid, "") for role, pid in processes.children.items()]


def disk_health(home: Path, least_bytes: int) -> list[Health]:
    """Returns an entry for the data folder's disk if it is nearly full. Reads still work then, but writes fail."""
    try:
        free = shutil.disk_usage(home).free
    except OSError:
        return []
    if not disk_fault(free, least_bytes):
        return []
    return [Health("disk", False, f"nearly full: {free // 1_000_000} MB free", None, str(home))]


async def _check_parts(run: dict[str, Any], home: DataDir) -> list[Health]:
    pids: dict[str, int] = run.get("pids") or {}
    ready: list[str] = run.get("ready") or []
    addresses = [(name, page, str(run[name])) for name, page in _PARTS if run.get(name)]
    addresses += [(name, None, url) for name, url in (run.get("companions") or {}).items()]
    states = await asyncio.gather(
        *(
            _part_state(name, address, page, pids.get(_ROLE_BY_PART.get(name, name)), home)
            for name, page, address in addresses
        )
    )
    health = []
    for (name, _, address), state in zip(addresses, states, strict=True):
        pid = pids.get(_ROLE_BY_PART.get(name, name))
        health.append(Health(name, state == "answers", state, pid, _without_credentials(address)))
    shown_roles = {"valkey", *(name for name, _, _ in addresses)}
    for role, pid in sorted(pids.items()):
        if role not in shown_roles:
            is_ready = alive(pid) is not None and role in ready
            state = "hangs" if is_ready and _is_unresponsive(home, role, pid) else "runs" if is_ready else "not ready"
            health.append(Health(role, state == "runs", state, pid, ""))
    return health


async def _part_state(name: str, address: str, page: str | None, pid: int | None, home: DataDir) -> str:
    """Returns `answers`, or the reason: `hangs` if a process of this stack exists and does not respond."""
    host, port = _host_and_port(address)
    if page is not None:
        response = await http_get(host, port, page)
        is_ok, responds = response is not None and response[0] < 400, response is not None
    else:
        is_ok = responds = await _responds(name, host, port, address, pid)
    is_silent = not responds or (pid is not None and _is_unresponsive(home, _ROLE_BY_PART.get(name, name), pid))
    if pid is not None and alive(pid) is not None and is_silent and await port_open(host, port):
        return "hangs"
    return "answers" if is_ok else "silent"


async def _responds(name: str, host: str, port: int, address: str, pid: int | None) -> bool:
    """Returns whether it responds in its own protocol, if that is known. A stopped process keeps its port open."""
    if pid is not None and name == "postgres":
        return await postgres_responds(host, port)
    if pid is not None and name == "redis":
        return await valkey_responds(host, port, urlsplit(address).password or "")
    if pid is not None and name == "temporal":
        return await grpc_responds(host, port)
    return await port_open(host, port)


def _is_unresponsive(home: DataDir, role: str, pid: int) -> bool:
    """Returns whether a process is stopped, or its heartbeat is too old."""
    if is_stopped(pid):
        return True
    try:
        return time.time() - home.ready_file(role).stat().st_mtime > HANG_SECONDS
    except OSError:
        return False


def _host_and_port(address: str) -> tuple[str, int]:
    parts = urlsplit(address if "://" in address else f"tcp://{address}")
    return parts.hostname or "127.0.0.1", parts.port or _DEFAULT_PORTS.get(parts.scheme, 7233)


def _without_credentials(address: str) -> str:
    if "://" not in address:
        return address
    host, port = _host_and_port(address)
    return f"{urlsplit(address).scheme}://{host}:{port}"


def deployment_of(client: Client) -> DeploymentStatus:
    """Returns the current status. If only queues have faults, waits up to 5 s for workers that have just started.

    Raises: ApiError.
    """
    deadline = time.monotonic() + _WORKER_WAIT_SECONDS
    while True:
        deployment = client.status.get()
        faults = [*(part.fault for part in deployment.parts), *(server.fault for server in deployment.mcp_servers)]
        has_other_faults = any((*faults, *deployment.stuck_turns))
        if deployment.well or has_other_faults or time.monotonic() > deadline:
            return deployment
        time.sleep(_POLL_SECONDS)


def show_deployment(deployment: DeploymentStatus) -> None:
    """Shows the status as tables. Parts are shown only if one has a fault."""
    faults = [(part.name, part.fault or part.note) for part in deployment.parts if part.fault or part.note]
    if faults:
        table(("part", "problem or note"), faults, "")
    if deployment.is_operator:
        rows = [(item.name, item.fault or "served", item.workers, item.backlog) for item in deployment.queues]
        table(("queue", "state", "workers", "backlog"), rows, "No data about the queues.")
    else:
        say("Set PERDURE_TOKEN to an operator token to see queues and MCP servers.")
    if deployment.mcp_servers:
        servers = [(f"{item.app}/{item.name}", item.fault or "answers", item.at) for item in deployment.mcp_servers]
        table(("mcp server", "last result", "at"), servers, "")
    if deployment.stuck_turns:
        stuck = [(each.turn_id, each.failures, each.since, each.message) for each in deployment.stuck_turns]
        table(("turn that does not continue", "failures", "since", "failure"), stuck, "")
    if not deployment.is_workload_known:
        say("Open turns: unknown, because Postgres cannot be read")
        return
    open_turns = ", ".join(f"{item.count} {item.status.replace('_', ' ')}" for item in deployment.turns)
    say(f"Open turns: {open_turns or 'none'}")


def deployment_json(deployment: DeploymentStatus) -> dict[str, Any]:
    """Returns the status as JSON."""
    fields = deployment.model_dump(mode="json")
    names = ("is_operator", "is_workload_known", "queues", "mcp_servers", "turns", "stuck_turns", "oldest_approval")
    return {name: fields[name] for name in names}
