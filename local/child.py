"""One supervised child: started, watched until ready, started again when it dies, ended step by step.

Invariants: exactly one process of a role at a time; a child that was healthy comes back within half a second; one that
keeps failing comes back ever more slowly; one that exits with an error before it was ever ready ends the start.
"""

import asyncio
import re
import signal
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from local.console import Console
from local.errors import StackError
from local.excerpt import Excerpt
from local.forked import Forked, Nursery, NurseryGone
from local.lines import read_lines
from local.log_file import LogFile
from local.spawn import RunAs, describe_exit, kill_group, spawn

_STEADY_SECONDS = 1.0
"""A child that was ready for less counts as one that failed to start."""
_PROBE_SECONDS = 0.03
_RESTART_SECONDS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """Everything about one child that is known before it starts."""

    role: str
    """Its name in run.json, in the log and on the terminal."""
    command: tuple[str, ...]
    environ: Mapping[str, str]
    """Its whole environment."""
    cwd: Path
    log: Path
    ready: Callable[[int], Awaitable[bool]]
    """Asked with its pid every few hundredths of a second until it says yes."""
    stop_steps: tuple[tuple[signal.Signals, float], ...]
    """What ends it: a signal and the seconds it is given, until SIGKILL ends it for certain."""
    stop_rank: int
    """Lower ranks are stopped first; a rank stops together."""
    death_signal: signal.Signals = signal.SIGKILL
    """What the kernel sends it when the supervisor dies."""
    run_as: RunAs | None = None
    shows: re.Pattern[str] | None = None
    """Which of its lines reach the terminal while it is ready; None: all, always. The log file has every line."""
    before_start: Callable[[], None] | None = None
    """Clears what an earlier process of this role left behind."""
    imports: tuple[str, ...] = ()
    """What it shares with others: named, it is forked from the nursery where there is one."""
    ready_seconds: float = 60.0
    detail: str = ""
    """What to print beside `ready`."""


def restart_delay_seconds(failures: int) -> float:
    """The wait before the next start after `failures` failures in a row (0: it was healthy): 0.1 0.5 1 2 4 8 15 15 …"""
    return _RESTART_SECONDS[min(failures, len(_RESTART_SECONDS) - 1)]


class Child:
    """A role that is kept running from `start` to `stop`."""

    def __init__(
        self,
        spec: ChildSpec,
        console: Console,
        changed: Callable[["Child"], None],
        nursery: Nursery | None = None,
    ) -> None:
        self.spec = spec
        self._nursery = nursery
        self.pid: int | None = None
        """The live process, None between two."""
        self.ready = False
        self.restarts = 0
        self._console = console
        self._changed = changed
        self._log = LogFile(spec.log)
        self._was_ready = asyncio.Event()
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it and wait until it is ready.

        Raises: StackError when it exits with an error first, or is not ready in time.
        """
        self._task = asyncio.create_task(self._keep_running(), name=f"child {self.spec.role}")
        ready = asyncio.create_task(self._was_ready.wait())
        try:
            async with asyncio.timeout(self.spec.ready_seconds):
                await asyncio.wait({ready, self._task}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise StackError(self._why(f"was not ready within {self.spec.ready_seconds:.0f} s")) from None
        finally:
            ready.cancel()
        if not self._was_ready.is_set() and self._task.done():
            await self._task

    async def stop(self, hurry: asyncio.Event | None = None) -> None:
        """End it for good by its stop steps; once `hurry` is set, by SIGKILL."""
        if hurry is not None:
            self._hurry = hurry
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait({self._task})
        self._log.close()

    async def failed(self) -> None:
        """Wait until it is given up; returns at its stop."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def _keep_running(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            code, ready_for = await self._one_life()
            if self._stopping.is_set():
                return
            if code >= 0 and not self._was_ready.is_set():
                raise StackError(self._why(f"did not start ({describe_exit(code)})"))
            failures = 0 if ready_for >= _STEADY_SECONDS else failures + 1
            delay = restart_delay_seconds(failures)
            self._console.child(self.spec.role, f"{describe_exit(code)}; starting it again in {delay:.1f} s")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)
            self.restarts += 1

    async def _one_life(self) -> tuple[int, float]:
        """From one start to its end: the exit code, and for how many seconds it was ready."""
        spec = self.spec
        if spec.before_start is not None:
            spec.before_start()
        try:
            process = await self._start_process()
        except OSError as error:
            self._log.write(f"{spec.command[0]}: {error.strerror}")
            return 127, 0.0
        self._announce(process.pid, ready=False)
        output = asyncio.create_task(self._pump(process))
        gone = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        ready_at: float | None = None
        try:
            if await self._becomes_ready(process, gone):
                ready_at = time.monotonic()
                self._announce(process.pid, ready=True)
                self._was_ready.set()
            await asyncio.wait({gone, stopping}, return_when=asyncio.FIRST_COMPLETED)
            ended = time.monotonic()
            await self._end(process, gone)
        finally:
            stopping.cancel()
            kill_group(process.pid)
            # What it wrote last is in the pipe already; a grandchild that holds the pipe open must not hold us.
            await asyncio.wait({output}, timeout=0.5)
            output.cancel()
            self._announce(None, ready=False)
        return gone.result(), ended - ready_at if ready_at is not None else 0.0

    async def _start_process(self) -> Process | Forked:
        spec = self.spec
        if self._nursery is not None and spec.imports:
            with suppress(NurseryGone):
                return await self._nursery.fork(spec.role, spec.command, spec.environ, spec.cwd, spec.imports)
        return await spawn(
            spec.command, environ=spec.environ, cwd=spec.cwd, death_signal=spec.death_signal, run_as=spec.run_as
        )

    async def _becomes_ready(self, process: Process | Forked, gone: asyncio.Task[int]) -> bool:
        deadline = time.monotonic() + self.spec.ready_seconds
        while not gone.done() and not self._stopping.is_set():
            if await self.spec.ready(process.pid) and not gone.done():
                return True
            if time.monotonic() > deadline:
                kill_group(process.pid)
            await asyncio.wait({gone}, timeout=_PROBE_SECONDS)
        return False

    async def _end(self, process: Process | Forked, gone: asyncio.Task[int]) -> None:
        hurry = asyncio.create_task(self._hurry.wait())
        for number, seconds in self.spec.stop_steps:
            if gone.done() or hurry.done():
                break
            with suppress(ProcessLookupError):
                process.send_signal(number)
            await asyncio.wait({gone, hurry}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not gone.done():
            kill_group(process.pid)
            await gone

    async def _pump(self, process: Process | Forked) -> None:
        assert process.stdout is not None
        excerpt = Excerpt(partial(self._console.child, self.spec.role))
        try:
            async for line in read_lines(process.stdout):
                self._log.write(line)
                shows = self.spec.shows
                if shows is None or (self.ready and not self._stopping.is_set() and shows.search(line)):
                    excerpt.take(line)
        finally:
            excerpt.close()

    def _announce(self, pid: int | None, *, ready: bool) -> None:
        self.pid, self.ready = pid, ready
        self._changed(self)

    def _why(self, what: str) -> str:
        """One line: what happened, the child's own last telling line, and where the rest is."""
        lines = [line.strip() for line in self._log.tail if line.strip()]
        telling = [line for line in lines if self.spec.shows is not None and self.spec.shows.search(line)] or lines
        said = f": {telling[-1]}" if telling else ""
        return f"{self.spec.role} {what}{said} (log: {self.spec.log})"
