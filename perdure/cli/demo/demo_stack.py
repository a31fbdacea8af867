"""The stack of the demo, with its own data folder and ports, so that it does not disturb other stacks.

After `close` no process and no file of it is left, whatever happened before. If the demo itself is killed, the kernel
ends the stack.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from perdure.contracts.ids import turn_workflow_id
from perdure.local.config import ROOT, own_environ
from perdure.local.data_dir import DataDir
from perdure.local.output import read_lines
from perdure.local.ports import PortFile
from perdure.local.processes import spawn
from perdure.local.temporal_server import NAMESPACE

WORKERS = ("worker-turns", "worker-llm", "worker-relay")
_START_SECONDS = 120.0
_STOP_SECONDS = 45.0
_POLL_SECONDS = 0.05
_STACK_PREFIXES = ("PERDURE_", "DATABASE_", "REDIS_", "TEMPORAL_")
"""Prefixes of variables that point at other stores and stacks, and must not reach this one."""
_HOLD_SECONDS = 60.0
_EFFECT_SECONDS = 30.0


class DemoFailed(Exception):
    """The demo cannot continue; the message states why."""


class DemoStack:
    """One stack, from its creation to its removal."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="perdure-demo-"))
        if os.geteuid() == 0:
            self.home.chmod(0o711)  # Postgres refuses to run as root: its user must be able to reach its folder
        self._environ = {name: value for name, value in own_environ().items() if not name.startswith(_STACK_PREFIXES)}
        self._environ |= {"PERDURE_HOME": str(self.home), "PYTHONUNBUFFERED": "1"}
        self._process: asyncio.subprocess.Process | None = None
        self._output: asyncio.Task[None] | None = None
        self._output_lines: list[str] = []

    async def open(self) -> None:
        """Starts everything and waits until it is healthy.

        Raises: DemoFailed with the last lines of the start.
        """
        port = PortFile(DataDir(self.home).ports_file).take("api")
        command = (sys.executable, "-m", "perdure", "up", "--examples")
        environ = {**self._environ, "PERDURE_PORT": str(port)}
        self._process = await spawn(command, environ=environ, cwd=ROOT, death_signal=signal.SIGTERM)
        self._output = asyncio.create_task(self._read_output(self._process))

        def is_up() -> bool:
            assert self._process is not None
            if self._process.returncode is not None:
                raise DemoFailed("the stack did not start: " + " / ".join(self._output_lines[-3:]))
            return DataDir(self.home).run_file.exists()

        await self.wait_until(is_up, _START_SECONDS, "the stack is not up")

    async def close(self, *, keep_logs: bool) -> str:
        """Ends and removes everything. Returns the folder of the saved logs, or an empty string."""
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), _STOP_SECONDS)
            except TimeoutError:
                self._process.kill()  # the kernel ends its children with it
                await self._process.wait()
        if self._output is not None:
            self._output.cancel()
        saved_logs = ""
        if keep_logs and (self.home / "logs").is_dir():
            saved_logs = tempfile.mkdtemp(prefix="perdure-demo-logs-")
            shutil.copytree(self.home / "logs", saved_logs, dirs_exist_ok=True)
        shutil.rmtree(self.home, ignore_errors=True)
        return saved_logs

    def run(self) -> dict[str, Any]:
        """Returns the current run.json."""
        content: dict[str, Any] = json.loads(DataDir(self.home).run_file.read_text())
        return content

    @property
    def url(self) -> str:
        """The API's address."""
        return str(self.run()["api"])

    @property
    def temporal_ui(self) -> str:
        """The Temporal Web UI's address."""
        return str(self.run()["temporal_ui"])

    def link(self, turn_id: str) -> str:
        """Returns the address of a turn in the Temporal Web UI."""
        return f"{self.temporal_ui}/namespaces/{NAMESPACE}/workflows/{turn_workflow_id(turn_id)}"

    def token(self, name: str) -> str:
        """Returns a local user's token."""
        return str(self.run()["tokens"][name])

    def payments(self) -> tuple[str, str]:
        """Returns the address and the secret of the payments service."""
        token = (DataDir(self.home).service("payments") / "token").read_text().strip()
        return str(self.run()["companions"]["payments"]), token

    def kill(self, roles: Iterable[str]) -> dict[str, int]:
        """Kills these processes with SIGKILL. Returns their pids by role."""
        live = self.run()["pids"]
        pids = {role: int(live[role]) for role in roles}
        for pid in pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pids

    async def wait_until_restarted(self, killed: Mapping[str, int]) -> dict[str, int]:
        """Waits until the supervisor has restarted them. Returns their new pids by role."""

        def are_back() -> bool:
            now = self.run()
            ready, pids = now["ready"], now["pids"]
            return all(role in ready and pids.get(role) not in (None, pid) for role, pid in killed.items())

        await self.wait_until(are_back, 60.0, "the supervisor did not restart the workers")
        return {role: int(self.run()["pids"][role]) for role in killed}

    async def perdure(self, *arguments: str) -> str:
        """Runs the `perdure` command as a user would, and returns its output.

        Raises: DemoFailed if its exit code is not 0.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "perdure",
            *arguments,
            cwd=ROOT,
            env=self._environ,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        printed = output.decode("utf-8", "replace")
        if process.returncode:
            raise DemoFailed(f"perdure {' '.join(arguments)} ended with {process.returncode}: {printed.strip()}")
        return printed

    async def wait_until(self, condition: Callable[[], bool], seconds: float, failure: str) -> None:
        """Waits until the condition is true.

        Raises: DemoFailed after this time.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise DemoFailed(f"{failure} after {seconds:.0f} s")
            await asyncio.sleep(_POLL_SECONDS)

    async def _read_output(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in read_lines(process.stdout):
            self._output_lines = [*self._output_lines[-20:], line.strip()]


class Payments:
    """A direct client of the service. Its requests do not pass through Perdure."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self._http = httpx.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, trust_env=False, verify=False, timeout=10.0
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def hold_answers(self, kind: str) -> None:
        """Holds the next response about an effect of this kind, after the effect is on disk."""
        fault = {"point": "after_commit", "delay_seconds": _HOLD_SECONDS, "times": 1, "kind": kind}
        (await self._http.post("/faults", json=fault)).raise_for_status()

    async def release_answers(self) -> None:
        """Stops holding responses."""
        (await self._http.delete("/faults")).raise_for_status()

    async def count(self, order: str, kind: str) -> int:
        """Returns how many effects of this kind the service's own ledger has for an order."""
        orders = (await self._get("/ledger"))["orders"]
        return int(orders.get(order, {}).get(kind, 0))

    async def wait_for_effect(self, order: str, kind: str) -> None:
        """Waits until the effect is on the service's disk.

        Raises: DemoFailed.
        """
        deadline = time.monotonic() + _EFFECT_SECONDS
        while not await self.count(order, kind):
            if time.monotonic() > deadline:
                raise DemoFailed(f"no {kind} reached the payments service within {_EFFECT_SECONDS:.0f} s")
            await asyncio.sleep(0.05)

    async def requests(self, path: str) -> list[dict[str, Any]]:
        """Returns the requests for a path, answered or not."""
        received = (await self._get("/requests"))["requests"]
        return [request for request in received if request["path"] == path and request["method"] == "POST"]

    async def last_effect(self) -> str:
        """Returns the newest effect of the ledger as `<kind>-<id>`."""
        effect = (await self._get("/ledger"))["effects"][-1]
        return f"{effect['kind']}-{effect['id']}"

    async def _get(self, path: str) -> dict[str, Any]:
        response = await self._http.get(path)
        response.raise_for_status()
        content: dict[str, Any] = response.json()
        return content
