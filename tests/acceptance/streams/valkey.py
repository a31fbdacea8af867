"""A Valkey of our own, which can be taken away and given back empty; the stack's own would be started again at once."""

import os
import signal
import subprocess
from pathlib import Path

import redis

from perdure.local.processes import valkey_server
from tests.acceptance.running import free_port

UP_SECONDS = 20.0


class OwnValkey:
    """One server on one port, in memory alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    def start(self) -> None:
        settings = ["--port", str(self._port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(
            [str(valkey_server()), *settings, "--dir", str(self._folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with self.client() as client:
            assert client.ping()

    def client(self) -> "redis.Redis":
        """A connection that is tried until the server is there."""
        often = redis.retry.Retry(redis.backoff.ConstantBackoff(0.1), int(UP_SECONDS / 0.1))
        return redis.Redis.from_url(self.url, retry=often, retry_on_error=[redis.ConnectionError])

    def wipe(self) -> None:
        with self.client() as client:
            client.flushall()

    def kill(self) -> None:
        """SIGKILL: connections are refused from now on."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
