"""The worker processes of all stacks: real processes that are started and ended together, with their CPU time."""

import asyncio
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from perdure.local.config import ROOT
from perdure.local.processes import kill_group

READY_SECONDS = 60.0
DRAIN_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Program:
    """A process to start."""

    role: str
    arguments: tuple[str, ...]
    """The interpreter's arguments."""
    fed: bool = False
    """True if it reads its work from its stdin."""


@dataclass(slots=True)
class Processes:
    """The running processes, by role."""

    folder: Path
    environ: Mapping[str, str]
    running: dict[str, Process] = field(default_factory=dict)

    def pid(self, role: str) -> int:
        """Returns the process id of a role."""
        return self.running[role].pid

    def feed(self, role: str, line: bytes) -> None:
        """Writes a line to the stdin of a process."""
        stdin = self.running[role].stdin
        assert stdin is not None
        stdin.write(line + b"\n")

    async def start(self, program: Program) -> None:
        """Starts one and waits until it serves.

        Raises: RuntimeError with the end of its log.
        """
        ready, log = self.folder / f"{program.role}.ready", self.folder / f"{program.role}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *program.arguments,
                stdin=PIPE if program.fed else DEVNULL,
                stdout=output,
                stderr=STDOUT,
                env={**self.environ, "PERDURE_READY_FILE": str(ready)},
                cwd=ROOT,
                start_new_session=True,
            )
        self.running[program.role] = process
        for _ in range(int(READY_SECONDS / 0.1)):
            if ready.exists() or process.returncode is not None:
                break
            await asyncio.sleep(0.1)
        if process.returncode is not None or not ready.exists():
            raise RuntimeError(f"{program.role} did not start:\n{log.read_text(errors='replace')[-2_000:]}")

    async def stop(self) -> None:
        """Sends SIGTERM to all, and SIGKILL to those that do not end."""
        for process in self.running.values():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await asyncio.gather(*(process.wait() for process in self.running.values()))
        for process in self.running.values():
            kill_group(process.pid)
            await process.wait()


@asynccontextmanager
async def running(programs: Sequence[Program], folder: Path, environ: Mapping[str, str]) -> AsyncIterator[Processes]:
    """Runs all of them until the block ends.

    They are started one by one: on a small machine their imports would alternate anyway.
    """
    processes = Processes(folder, environ)
    try:
        for program in programs:
            await processes.start(program)
        yield processes
    finally:
        await processes.stop()


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time of a process and all its descendants, including those that have ended."""
    total = 0.0
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total


def machine_cpu_seconds() -> float:
    """Returns the CPU time for which the whole machine has been busy."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))
