"""Ports of the embedded parts: chosen at the first start, and kept as long as they are free."""

import asyncio
import json
import os
import random
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from perdure.local.data_dir import StackError, write_private

HOST = "127.0.0.1"
SUPERVISOR = "supervisor"
"""The name of the supervisor's own process among the others."""

PORT_RANGE = range(20_000, 32_000)
"""The ports to choose from. From 32768 Linux allocates local ports of outgoing connections, which could take the port
of a part during its restart."""
_RANDOM = random.SystemRandom()
"""Independent of a seed, with which two processes would pick the same ports."""
_IN_USE = re.compile(r"address (is )?already in use|EADDRINUSE", re.IGNORECASE)
RESPONSE_SECONDS = 2.0
"""Limit of each probe. The probes use no client libraries, whose imports take time."""
_SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"
"""Postgres's SSLRequest: a new backend responds with one byte, before any sign-in."""
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""The first bytes of a gRPC client: the preface and empty settings. The server responds with its own settings."""


class PortInUse(StackError):
    """Another process took a port after the stack chose it. A new start chooses another port."""

    def __init__(self, fault: str) -> None:
        super().__init__(f"{fault}; the next start chooses another port")


def is_free(port: int, host: str = HOST) -> bool:
    """Returns whether a server could listen there now. Connections in TIME_WAIT do not count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(reserved: Collection[int] = (), host: str = HOST) -> int:
    """Returns a port, not one of `reserved`, that a server could listen on now and that no outgoing connection takes.

    Raises: StackError if a thousand random ports were all taken.
    """
    for _ in range(1000):
        port = _RANDOM.choice(PORT_RANGE)
        if port not in reserved and is_free(port, host):
            return port
    raise StackError(f"no free port between {PORT_RANGE[0]} and {PORT_RANGE[-1]} on {host}")


def configured_port_in_use(port: int, setting: str) -> StackError:
    """Returns the error that names the port and the setting to change."""
    return StackError(
        f"port {port} on {HOST} is in use; stop the process that uses it, or set {setting} to another port"
    )


def conflicting_port(ports: Sequence[int], lines: Sequence[str]) -> int | None:
    """Returns the port that prevented a part from starting: one that is in use although the part has ended, or the one
    that the part's last lines report. None if the part ended for another reason."""
    for port in ports:
        if not is_free(port):
            return port
    reports = [line for line in lines if _IN_USE.search(line)]
    if not reports:
        return None
    reported = (port for port in ports if any(re.search(rf"\b{port}\b", line) for line in reports))
    return next(reported, ports[0] if ports else None)


class PortFile:
    """The ports of one data folder, by name, stored in `ports.json`."""

    def __init__(self, path: Path, reserved: Collection[int] = ()) -> None:
        """`reserved`: ports that no part can get."""
        self._path = path
        self._ports: dict[str, int] = _read_ports(path)
        self._assigned: set[int] = set(reserved)

    def take(self, name: str) -> int:
        """Returns the stored port of `name` if it is free, or else a new one, which is stored.

        Raises: StackError if a thousand random ports were all taken.
        """
        port = self._ports.get(name)
        if port is None or port in self._assigned or not is_free(port):
            port = free_port({*self._assigned, *self._ports.values()})
            self._ports[name] = port
            write_private(self._path, json.dumps(self._ports, indent=2) + "\n")
        self._assigned.add(port)
        return port

    def names(self) -> dict[int, str]:
        """Returns the names of the ports that were assigned in this start, by port."""
        return {port: name for name, port in self._ports.items() if port in self._assigned}


def listening_ports(pids: Mapping[str, int], names: Mapping[int, str]) -> dict[str, int]:
    """Returns every TCP port on which one of these processes or its descendants listens. A port without its own name is
    named after its process, such as `temporal-1`."""
    ports: dict[str, int] = {}
    for role, pid in pids.items():
        unnamed = 0
        for port in sorted(_ports_of(pid, with_descendants=role != SUPERVISOR)):
            if port in names:
                ports[names[port]] = port
            else:
                unnamed += 1
                ports[f"{role}-{unnamed}"] = port
    return ports


def _ports_of(pid: int, *, with_descendants: bool) -> set[int]:
    ports: set[int] = set()
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *(process.children(recursive=True) if with_descendants else ())):
            with suppress(psutil.Error):
                connections = each.net_connections(kind="tcp")
                ports |= {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}
    return ports


def _read_ports(path: Path) -> dict[str, int]:
    try:
        stored = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(stored, dict):
        return {}
    return {str(name): port for name, port in stored.items() if isinstance(port, int) and 0 < port < 65_536}


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The response of an HTTP server; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


async def port_open(host: str, port: int) -> bool:
    """Returns whether a process accepts connections there."""
    try:
        async with asyncio.timeout(RESPONSE_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    await _close(writer)
    return True


async def http_get(host: str, port: int, path: str, name: str = "") -> tuple[int, str] | None:
    """Returns status and body of one GET, or None without a proper response. `name` is the Host header; default: the
    address."""
    response = await http_request(host, port, "GET", path, {"Host": name or f"{host}:{port}"})
    return (response.status, response.body.decode("utf-8", "replace")) if response is not None else None


async def http_post(host: str, port: int, path: str, token: str) -> tuple[int, str] | None:
    """Returns status and body of one POST without a body, with this token; None without a proper response."""
    headers = {"Host": f"{host}:{port}", "Authorization": f"Bearer {token}"}
    response = await http_request(host, port, "POST", path, headers)
    return (response.status, response.body.decode("utf-8", "replace")) if response is not None else None


async def http_request(
    host: str,
    port: int,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes = b"",
    seconds: float = RESPONSE_SECONDS,
) -> HttpResponse | None:
    """Returns the response to one request on its own connection, or None if there is no proper one in time.

    It uses HTTP/1.0, so that no server responds in chunks. The headers must not contain line breaks.
    """
    lines = [f"{method} {target} HTTP/1.0", *(f"{name}: {value}" for name, value in headers.items())]
    if body or method != "GET":
        lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1")
    return _parse_response(await _exchange(host, port, head + body, None, seconds))


def _parse_response(response: bytes) -> HttpResponse | None:
    head, separator, body = response.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    status = first.split(" ", 2)
    if not separator or len(status) < 2 or not status[1].isdigit():
        return None
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    if len(body) < int(fields.get("content-length") or 0):
        return None
    return HttpResponse(int(status[1]), fields, body)


async def valkey_is_ready(host: str, port: int, password: str) -> bool:
    """Returns whether Valkey has loaded its data and accepts commands."""
    return (await _ping_valkey(host, port, password)).endswith(b"+PONG\r\n")


async def valkey_responds(host: str, port: int, password: str) -> bool:
    """Returns whether Valkey responds at all, even if it is loading or busy."""
    return bool(await _ping_valkey(host, port, password))


async def _ping_valkey(host: str, port: int, password: str) -> bytes:
    return await _exchange(host, port, f"AUTH {password}\r\nPING\r\n".encode(), b"+PONG\r\n")


async def postgres_responds(host: str, port: int) -> bool:
    """Returns whether the postmaster starts a backend that responds; true also during recovery or if the server is
    full."""
    return (await _exchange(host, port, _SSL_REQUEST, None, max_bytes=1))[:1] in (b"N", b"S", b"E")


async def grpc_responds(host: str, port: int) -> bool:
    """Returns whether a gRPC server without TLS sends its settings."""
    return bool(await _exchange(host, port, _HTTP2_PREFACE, None, max_bytes=9))


def postgres_accepts(data_folder: Path, pid: int) -> bool:
    """Returns whether the lock file of the postmaster `pid` states that it accepts connections.

    Line 8 of postmaster.pid is the status that `pg_ctl start --wait` reads. It needs no connection and no password.
    """
    try:
        lines = (data_folder / "postmaster.pid").read_text().splitlines()
    except OSError:
        return False
    return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"


def heartbeat_probe(file: Path) -> Callable[[int], Awaitable[bool]]:
    """Returns whether the process that touches this file every second has done so since the previous check
    (perdure/worker/queues.py).

    Also returns True if the file system rejects touches: an old file then proves nothing.
    """
    touched_at = -1

    def was_touched() -> bool:
        nonlocal touched_at
        before = touched_at
        try:
            touched_at = file.stat().st_mtime_ns
            if touched_at == before:
                os.utime(file.parent)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return touched_at != before

    async def responds(_pid: int) -> bool:
        return was_touched()

    return responds


async def _exchange(
    host: str, port: int, request: bytes, until: bytes | None, seconds: float = RESPONSE_SECONDS, max_bytes: int = 0
) -> bytes:
    """Returns the peer's response, up to its end, to `until` or to `max_bytes` bytes; empty if there is none."""
    response = b""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(request)
                while chunk := await reader.read(65_536):
                    response += chunk
                    if max_bytes and len(response) >= max_bytes:
                        break
                    if until and (response.endswith(until) or b"\r\n-" in response or response[:1] == b"-"):
                        break
            finally:
                await _close(writer)
    return response


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
