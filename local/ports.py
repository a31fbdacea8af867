"""Which port each embedded part listens on: free at the first start, the same ever after while it is still free."""

import json
import random
import socket
from pathlib import Path

from local.errors import StackError
from local.home import write_private

HOST = "127.0.0.1"

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

    def _pick(self) -> int:
        reserved = self._given | set(self._ports.values())
        for _ in range(1000):
            port = random.randint(_LOWEST, _HIGHEST)
            if port not in reserved and is_free(port):
                return port
        raise StackError(f"no free port between {_LOWEST} and {_HIGHEST} on {HOST}")


def _read(path: Path) -> dict[str, int]:
    try:
        kept = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(kept, dict):
        return {}
    return {str(name): port for name, port in kept.items() if isinstance(port, int) and 0 < port < 65_536}
