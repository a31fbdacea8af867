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

from perdure.cli.connection import Role, Surroundings, connect
from perdure.cli.terminal import OTHER, AsJson, fail, say, say_json, table
from perdure.client import ApiError, Client
from perdure.core.status import disk_fault
from perdure.local.config import least_free_bytes, own_environ
from perdure.local.data_dir import DataDir
from perdure.local.ports import grpc_responds, http_get, port_open, postgres_responds, valkey_responds
from perdure.local.processes import alive, is_stopped, running_children
from perdure.schemas.status import DeploymentStatus

_PARTS = (("api", "/readyz"), ("temporal", None), ("temporal_ui", "/"), ("postgres", None), ("redis", None))
"""Addresses in run.json, each with a page to request if that shows more than an open port."""
_SILENT_SECONDS = 6.0
"""A process whose heartbeat is older than this hangs, because it beats every second. The supervisor kills it later."""
_ROLES = {"redis": "valkey"}
"""Names of parts in the pids of run.json, if they differ."""
_DEFAULT_PORTS = {"postgresql": 5432, "postgres": 5432, "redis": 6379, "rediss": 6379, "http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Health:
    """The health of one part or process."""

    name: str
    well: bool
    what: str
    """`answers`, `silent`, `runs`, `hangs`, `not ready`, `starting or stopping`, `nearly full: …`, or
    `still running without a supervisor`."""
    pid: int | None
    address: str
    """The address without credentials."""

    @property
    def where(self) -> str:
        """The address for display, without `redis://`, which names the protocol."""
        return self.address.removeprefix("redis://")


def status(as_json: AsJson = False) -> None:
    """Show the state of this stack: addresses, processes, and the API's report on queues, workers and MCP servers. With
    PERDURE_URL, only that API's report. Exit code 0 if all components work, otherwise 1."""
    here = Surroundings.here()
    if here.run is None and here.url is not None:
        raise typer.Exit(_of_api(as_json))
    if here.run is None and not as_json:
        raise fail(here.why_nothing_runs(), OTHER)
    found = asyncio.run(_look(here.run, DataDir(here.home))) if here.run is not None else _left_behind(here)
    found += nearly_full(here.home, least_free_bytes(own_environ()))
    deployment = _deployment(here.run) if here.run is not None else None
    well = here.run is not None and all(each.well for each in found) and (deployment is None or deployment.well)
    if as_json:
        parts = [
            {"name": each.name, "well": each.well, "state": each.what, "pid": each.pid, "address": each.address}
            for each in found
        ]
        why = (
            {"message": here.why_nothing_runs()}
            if here.run is None
            else {
                "routing": here.run.get("routing"),
                "left_out": here.run.get("left_out", []),
            }
        )
        fields = deployment_json(deployment) if deployment is not None else {}
        say_json({"well": well, "home": str(here.home), **why, "parts": parts, **fields})
    else:
        rows = [(_ROLES.get(each.name, each.name), each.what, each.pid or "", each.where) for each in found]
        table(("part", "state", "pid", "address"), rows, "No processes.")
        if deployment is not None:
            show_deployment(deployment)
        for line in (here.run or {}).get("left_out", ()):
            say(line)
        say("All parts work." if well else "Some parts do not work; the logs are in " + str(here.home / "logs"))
    raise typer.Exit(0 if well else OTHER)


def _of_api(as_json: bool) -> int:
    """Shows what a remote API reports about its deployment. Returns the exit code.

    Raises ApiError.
    """
    with connect(Role.REVIEWER) as client:
        found = deployment_of(client)
    if as_json:
        say_json({"well": found.well, "parts": found.model_dump(mode="json")["parts"], **deployment_json(found)})
    else:
        show_deployment(found)
        say("All parts work." if found.well else "Some parts do not work.")
    return 0 if found.well else OTHER


def _deployment(run: dict[str, Any]) -> DeploymentStatus | None:
    """Returns what this stack's API reports, or None if it does not respond, which its own row shows."""
    url, token = run.get("api"), (run.get("tokens") or {}).get(Role.REVIEWER.value)
    if not url or not token:
        return None
    with Client(str(url), token, patience_seconds=0.0) as client, suppress(ApiError):
        return deployment_of(client)
    return None


def _left_behind(here: Surroundings) -> list[Health]:
    """Returns processes that run without a stack. A supervisor that was killed cannot end its children."""
    found = running_children(DataDir(here.home).registry_file)
    what = "still running without a supervisor" if found.supervisor is None else "starting or stopping"
    return [Health(role, False, what, pid, "") for role, pid in found.children.items()]


def nearly_full(home: Path, least_bytes: int) -> list[Health]:
    """Returns an entry for the data folder's disk if it is nearly full. Reads still work then, but writes fail."""
    try:
        free = shutil.disk_usage(home).free
    except OSError:
        return []
    if not disk_fault(free, least_bytes):
        return []
    return [Health("disk", False, f"nearly full: {free // 1_000_000} MB free", None, str(home))]


async def _look(run: dict[str, Any], home: DataDir) -> list[Health]:
    pids: dict[str, int] = run.get("pids") or {}
    ready: list[str] = run.get("ready") or []
    addresses = [(name, page, str(run[name])) for name, page in _PARTS if run.get(name)]
    addresses += [(name, None, url) for name, url in (run.get("companions") or {}).items()]
    states = await asyncio.gather(
        *(_state(name, address, page, pids.get(_ROLES.get(name, name)), home) for name, page, address in addresses)
    )
    found = []
    for (name, _, address), state in zip(addresses, states, strict=True):
        pid = pids.get(_ROLES.get(name, name))
        found.append(Health(name, state == "answers", state, pid, _bare(address)))
    shown = {"valkey", *(name for name, _, _ in addresses)}
    for role, pid in sorted(pids.items()):
        if role not in shown:
            well = alive(pid) is not None and role in ready
            state = "hangs" if well and _is_silent(home, role, pid) else "runs" if well else "not ready"
            found.append(Health(role, state == "runs", state, pid, ""))
    return found


async def _state(name: str, address: str, page: str | None, pid: int | None, home: DataDir) -> str:
    """Returns `answers`, or the reason: `hangs` if a process of this stack exists and does not respond."""
    host, port = _host_and_port(address)
    if page is not None:
        answer = await http_get(host, port, page)
        answers, speaks = answer is not None and answer[0] < 400, answer is not None
    else:
        answers = speaks = await _speaks(name, host, port, address, pid)
    silent = not speaks or (pid is not None and _is_silent(home, _ROLES.get(name, name), pid))
    if pid is not None and alive(pid) is not None and silent and await port_open(host, port):
        return "hangs"
    return "answers" if answers else "silent"


async def _speaks(name: str, host: str, port: int, address: str, pid: int | None) -> bool:
    """Returns whether it responds in its own protocol, if that is known. A stopped process keeps its port open."""
    if pid is not None and name == "postgres":
        return await postgres_responds(host, port)
    if pid is not None and name == "redis":
        return await valkey_responds(host, port, urlsplit(address).password or "")
    if pid is not None and name == "temporal":
        return await grpc_responds(host, port)
    return await port_open(host, port)


def _is_silent(home: DataDir, role: str, pid: int) -> bool:
    """Returns whether a process is stopped, or its heartbeat is too old."""
    if is_stopped(pid):
        return True
    try:
        return time.time() - home.ready_file(role).stat().st_mtime > _SILENT_SECONDS
    except OSError:
        return False


def _host_and_port(address: str) -> tuple[str, int]:
    parts = urlsplit(address if "://" in address else f"tcp://{address}")
    return parts.hostname or "127.0.0.1", parts.port or _DEFAULT_PORTS.get(parts.scheme, 7233)


def _bare(address: str) -> str:
    if "://" not in address:
        return address
    host, port = _host_and_port(address)
    return f"{urlsplit(address).scheme}://{host}:{port}"


_PATIENCE_SECONDS = 5.0
"""A worker that has just started appears in Temporal's list a little later."""
_LOOK_SECONDS = 0.5


def deployment_of(client: Client) -> DeploymentStatus:
    """Returns the current status. If only queues have faults, waits up to 5 s for workers that have just started.

    Raises ApiError.
    """
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        found = client.status.get()
        others = any(part.fault for part in found.parts) or any(server.fault for server in found.mcp_servers)
        if found.well or others or time.monotonic() > until:
            return found
        time.sleep(_LOOK_SECONDS)


def show_deployment(found: DeploymentStatus) -> None:
    """Shows the status as tables. Parts are shown only if one has a fault."""
    faults = [(part.name, part.fault or part.note) for part in found.parts if part.fault or part.note]
    if faults:
        table(("part", "problem, or unknown"), faults, "")
    if found.is_operator:
        rows = [(each.name, each.fault or "served", each.workers, each.backlog) for each in found.queues]
        table(("queue", "state", "workers", "backlog"), rows, "No data about the queues.")
    else:
        say("Set PERDURE_TOKEN to an operator token to see queues and MCP servers.")
    if found.mcp_servers:
        met = [(f"{each.app}/{each.name}", each.fault or "answers", each.at) for each in found.mcp_servers]
        table(("mcp server", "last used", "at"), met, "")
    waiting = ", ".join(f"{each.count} {each.status.replace('_', ' ')}" for each in found.turns)
    say(f"Open turns: {waiting or 'none'}")


def deployment_json(found: DeploymentStatus) -> dict[str, Any]:
    """Returns the status as JSON."""
    fields = found.model_dump(mode="json")
    names = ("is_operator", "queues", "mcp_servers", "turns", "oldest_approval")
    return {name: fields[name] for name in names}
