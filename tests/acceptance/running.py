"""A whole stack, started by the command line as a user starts it, with a data folder of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from perdure.local.ports import free_port
from tests.eventually import wait_until

ROOT = Path(__file__).parents[2]
START_SECONDS = 120.0
WORKERS = ("worker-turns", "worker-llm", "worker-relay")


@dataclass(slots=True)
class RunningStack:
    """The contents of run.json, and its processes."""

    home: Path
    process: subprocess.Popen[bytes]

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.home / "run.json").read_text())
        return found

    @property
    def api(self) -> str:
        return str(self.read()["api"])

    def token(self, name: str) -> str:
        return str(self.read()["tokens"][name])

    def companion_token(self, name: str) -> str:
        return (self.home / "companions" / name / "token").read_text().strip()

    def kill(self, *roles: str) -> dict[str, int]:
        pids = {role: int(self.read()["pids"][role]) for role in roles}
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        return pids

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Stops the supervisor until the block ends, so that no ended process is restarted."""
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)

    def restarted(self, killed: Mapping[str, int]) -> set[str]:
        """The killed processes that run and are ready under a new pid."""
        now = self.read()
        return {role for role in now["ready"] if role in killed and now["pids"].get(role) not in (None, killed[role])}

    def wait_restarted(self, killed: Mapping[str, int], seconds: float = 120.0) -> float:
        """Wait until each role runs and is ready under a new pid; when that was, by the monotonic clock."""
        wait_until(lambda: self.restarted(killed) == set(killed), seconds, f"not restarted: {dict(killed)}")
        return time.monotonic()


@contextmanager
def running(home: Path, *arguments: str, **environ: str) -> Iterator[RunningStack]:
    """A stack in `home` until the block ends; whatever happens, nothing of it is left."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PERDURE_", "TEMPORAL_"))}
    unasked = {"PERDURE_APP": "", "PERDURE_EXAMPLES": "false"}  # whatever `.env` says
    env |= {"PERDURE_HOME": str(home), "PERDURE_PORT": str(free_port()), **unasked, **environ}
    log = home.parent / f"{home.name}.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "perdure", "up", *arguments]
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=output, stderr=output)
    children: list[psutil.Process] = []
    try:
        wait_until(lambda: (home / "run.json").exists() or process.poll() is not None, START_SECONDS, log)
        assert process.poll() is None, f"the stack did not start:\n{log.read_text()[-3000:]}"
        children = psutil.Process(process.pid).children(recursive=True)
        yield RunningStack(home, process)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(45)
        except subprocess.TimeoutExpired:
            process.kill()
        for child in children:
            if child.is_running():
                child.kill()
