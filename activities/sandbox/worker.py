"""One interpreter process: started, used, ended. Everything here blocks; the crew has the threads.

Monty's synchronous client is used, on threads: the asynchronous one hangs when a busy run is cancelled
(pydantic/monty#551) and aborts some processes at exit (measured: 3 of 60, the synchronous one 0 of 100).
"""

import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from pydantic import JsonValue
from pydantic_monty import Monty, MontyError, MontySession, ResourceLimits

from activities.sandbox.call import called, crashed
from activities.sandbox.jail import close_on_exec
from activities.sandbox.limits import MIB, Limits
from activities.sandbox.printed import Printed
from activities.sandbox.protocol import SandboxUnavailable
from activities.sandbox.ran import Fault, FaultKind, Ran, fault

SCRIPT = "block.py"
"""What tracebacks call a block."""
GRACE_SECONDS = 1.0
"""After the limit the interpreter has half of this to stop by itself; then its process is killed."""
_GROWN_BYTES = 32 * MIB
"""A worker that kept so much is not used again: the next block would meet the process's limit before its own."""


@dataclass(frozen=True, slots=True)
class Making:
    """How workers are made."""

    program: Path
    """The interpreter itself, or the launcher of a jail."""
    ceiling: Limits
    cpu_seconds: int | None
    """What the process may use over its life; None where nothing bounds it."""


class Worker:
    """A started interpreter, for one tenant and one run at a time."""

    def __init__(self, making: Making) -> None:
        """Start it and see it answer.

        Raises: SandboxUnavailable.
        """
        self._making = making
        self._inner: psutil.Process | None = None
        self._spent = False
        close_on_exec()
        self._pool = Monty(
            binary_path=making.program,
            min_processes=1,
            max_processes=1,
            request_timeout=making.ceiling.wall_seconds + 2 * GRACE_SECONDS,
            feed_duration_limit_grace=GRACE_SECONDS / 2,
            turn_duration_limit_grace=None,
        )
        try:
            self._pool.__enter__()
            with self._pool.checkout() as session:
                session.feed_run("0")
                self._outer = psutil.Process(session.worker_pid)
            self._inner = next(iter(self._outer.children()), self._outer)
        except (MontyError, OSError, psutil.Error) as error:
            self.close()
            raise SandboxUnavailable(f"the interpreter does not start: {error}") from error
        self.pid = self._inner.pid
        """Of the interpreter itself, which is bubblewrap's child where there is a jail."""
        self._first_bytes = self._held_bytes()

    @property
    def fit(self) -> bool:
        """Whether another run of its tenant may have it."""
        return not self._spent and self._alive

    def session(self, limits: Limits, type_stubs: str | None = None) -> MontySession:
        """A namespace of its own; with `type_stubs` what it is fed is type-checked first."""
        return self._pool.checkout(
            script_name=SCRIPT,
            limits=ResourceLimits(
                max_feed_duration_secs=limits.wall_seconds,
                max_memory=limits.memory_bytes,
                max_recursion_depth=limits.recursion_frames,
            ),
            type_check=type_stubs is not None,
            type_check_stubs=type_stubs,
            type_check_format="json",
            os_policy={"sleep": "zero"},
        )

    def run(self, code: str, inputs: Mapping[str, JsonValue], limits: Limits) -> Ran:
        """One call of the block's `run`. After any fault the worker is spent."""
        printed = Printed(limits.output_bytes, self.kill)
        cpu_before = self._cpu_seconds()
        started = time.monotonic()
        try:
            with self.session(limits) as session:
                came_to = called(session, code, inputs, limits, printed)
        except MontyError as error:  # it died before the code was fed
            came_to = crashed(error)
        wall = time.monotonic() - started
        cpu = self._cpu_seconds()
        problem = came_to if isinstance(came_to, Fault) else None
        if printed.too_much:
            problem = fault(FaultKind.OUTPUT, f"the block printed more than {limits.output_bytes} bytes")
        elif problem is not None and problem.kind in (FaultKind.TIME, FaultKind.CRASHED):
            problem = _by_clock(problem, wall, limits.wall_seconds)
        self._spent = self._spent or problem is not None or self._worn(cpu)
        used = None if cpu is None or cpu_before is None else cpu - cpu_before
        if problem is not None or isinstance(came_to, Fault):
            return Ran(fault=problem, output=printed.text, wall_seconds=wall, cpu_seconds=used)
        return Ran(came_to.json, came_to.size_bytes, None, printed.text, wall, used)

    def kill(self) -> None:
        """End the process now, whatever it does; what waits for it learns that it died.

        The inner one: bubblewrap then buries it, and ends. The other way round the dead would be left to process 1,
        which in a container may be this program.
        """
        self._spent = True
        if self._inner is not None:
            with suppress(psutil.NoSuchProcess):
                self._inner.kill()

    def close(self) -> None:
        """End the process and forget it."""
        self.kill()
        self._pool.__exit__(None, None, None)

    @property
    def _alive(self) -> bool:
        try:
            return str(self._outer.status()) != psutil.STATUS_ZOMBIE and self._cpu_seconds() is not None
        except psutil.NoSuchProcess:
            return False

    def _worn(self, cpu: float | None) -> bool:
        """Whether its process may be short of time or memory in the next run."""
        if cpu is None:
            return True
        most = self._making.cpu_seconds
        if most is not None and cpu > most - 2 * self._making.ceiling.wall_seconds - 2:
            return True
        return self._held_bytes() - self._first_bytes > _GROWN_BYTES

    def _cpu_seconds(self) -> float | None:
        """Of the process since its start; None where it is gone."""
        try:
            if sys.platform != "linux":
                return sum(psutil.Process(self.pid).cpu_times()[:2])
            # The clock of another process, as clock_getcpuclockid(3) makes it: to the nanosecond, in one call.
            return time.clock_gettime((~self.pid << 3) | 2)
        except (OSError, psutil.NoSuchProcess):
            return None

    def _held_bytes(self) -> int:
        """Writable memory, touched or not: what RLIMIT_DATA counts; 0 where the kernel does not tell."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            return 0


def _by_clock(problem: Fault, wall: float, most: float) -> Fault:
    """A block can raise a time-out itself, and a death may be the end of its time: the clock says which."""
    if wall >= most:
        return fault(FaultKind.TIME, f"the block was stopped after {most:g} s", problem.line)
    kind = FaultKind.RAISED if problem.kind is FaultKind.TIME else problem.kind
    return fault(kind, problem.message, problem.line)
