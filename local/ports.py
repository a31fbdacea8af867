"""Which port each embedded part listens on: free at the first start, the same ever after while it is still free."""

import json
import random
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from local.errors import StackError
from local.home import write_private

HOST = "127.0.0.1"
SUPERVISOR = "supervisor"
"""What the supervisor's own process is called among the others."""

_LOWEST, _HIGHEST = 20_000, 31_999
"""Below 32768, where Linux takes the local ports of outgoing connections: a restarted part finds its port free."""


def is_free(port: int, host: str = HOST) -> bool:
    """Whether a server could listen there now; connections that linger in TIME_WAIT do not count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_ports(count: int, host: str = HOST) -> list[int]:
    """As many different ports that a server could listen on now."""
    probes = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((host, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


class PortBook:
    """The ports of one data folder, by name, remembered in `ports.json`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ports: dict[str, int] = _read(path)
        self._given: set[int] = set()

    def take(self, name: str) -> int:
        """The remembered port of `name` if it is free, else a new one, which is remembered.

        Raises: StackError when a thousand random ports were all taken.
        """
        port = self._ports.get(name)
        if port is None or port in self._given or not is_free(port):
            port = self._pick()
            self._ports[name] = port
            write_private(self._path, json.dumps(self._ports, indent=2) + "\n")
        self._given.add(port)
        return port

    def names(self) -> dict[int, str]:
        """What each port that was given out is called."""
        return {port: name for name, port in self._ports.items() if port in self._given}

    def _pick(self) -> int:
        reserved = self._given | set(self._ports.values())
        for _ in range(1000):
            port = random.randint(_LOWEST, _HIGHEST)
            if port not in reserved and is_free(port):
                return port
        raise StackError(f"no free port between {_LOWEST} and {_HIGHEST} on {HOST}")


def listening(pids: Mapping[str, int], names: Mapping[int, str]) -> dict[str, int]:
    """Every TCP port on which one of these processes, or what it started, listens; a port without a name of its own is
    called after its process, such as `temporal-1`."""
    found: dict[str, int] = {}
    for role, pid in pids.items():
        unnamed = 0
        for port in sorted(_ports_of(pid, alone=role == SUPERVISOR)):
            if port in names:
                found[names[port]] = port
            else:
                unnamed += 1
                found[f"{role}-{unnamed}"] = port
    return found


def _ports_of(pid: int, *, alone: bool) -> set[int]:
    ports: set[int] = set()
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *([] if alone else process.children(recursive=True))):
            with suppress(psutil.Error):
                found = each.net_connections(kind="tcp")
                ports |= {each.laddr.port for each in found if each.status == psutil.CONN_LISTEN}
    return ports


def _read(path: Path) -> dict[str, int]:
    try:
        kept = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(kept, dict):
        return {}
    return {str(name): port for name, port in kept.items() if isinstance(port, int) and 0 < port < 65_536}
