"""One supervised child: started, watched until ready, started again when it dies, ended step by step.

Invariants: exactly one process of a role at a time; a child that was healthy comes back within half a second; one that
keeps failing comes back ever more slowly; one that exits with an error before it was ever ready ends the start; one
that does not answer any more is killed and comes back like one that died.
"""

import asyncio
import re
import signal
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from local.console import Console
from local.errors import StackError
from local.excerpt import Excerpt
from local.forked import Forked, Nursery, NurseryGone
from local.lines import read_lines
from local.log_file import LogFile
from local.patience import LOOK_SECONDS, Listening, Patience, SlowStart
from local.spawn import RunAs, cpu_seconds, describe_exit, kill_group, kill_tree, spawn

_STEADY_SECONDS = 1.0
"""A child that was ready for less counts as one that failed to start."""
_PROBE_SECONDS = 0.03
_LOOK_AT_START_SECONDS = 3.0
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
    lives: Callable[[int], Awaitable[bool]] | None = None
    """Asked with its pid now and then while it is ready: whether it still answers. None: it is never found to hang."""
    held: Callable[[], bool] | None = None
    """Whether it waits for other parts before it starts, which does not count as its own time."""
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
        patience: Patience | None = None,
    ) -> None:
        self.spec = spec
        self._patience = patience or Patience()
        self._given_up = ""
        """Why the first start was given up."""
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

        Raises: StackError when it exits with an error first, or makes no progress.
        """
        self._task = asyncio.create_task(self._keep_running(), name=f"child {self.spec.role}")
        ready = asyncio.create_task(self._was_ready.wait())
        try:
            await asyncio.wait({ready, self._task}, return_when=asyncio.FIRST_COMPLETED)
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
            if self._given_up and not self._was_ready.is_set():
                raise StackError(self._why(self._given_up))
            if code >= 0 and not self._was_ready.is_set():
                raise StackError(self._why(f"did not start ({describe_exit(code)})"))
            if self._given_up:
                self._console.child(self.spec.role, self._given_up)
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
        starting = SlowStart(self._patience.start_seconds, time.monotonic())
        try:
            process = await self._patiently(self._start_process(), starting)
        except OSError as error:
            self._log.write(f"{spec.command[0]}: {error.strerror}")
            return 127, 0.0
        if process is None:
            return -signal.SIGKILL, 0.0
        self._announce(process.pid, ready=False)
        output = asyncio.create_task(self._pump(process))
        gone = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        hanging = asyncio.create_task(self._hangs(process.pid))
        ready_at: float | None = None
        try:
            if await self._becomes_ready(process, gone, starting):
                ready_at = time.monotonic()
                self._announce(process.pid, ready=True)
                self._was_ready.set()
            await asyncio.wait({gone, stopping, hanging}, return_when=asyncio.FIRST_COMPLETED)
            ended = time.monotonic()
            if hanging.done() and not gone.done() and not stopping.done():
                silent = f"has not answered for {self._patience.hang_seconds:.0f} s; killing and restarting it"
                self._console.child(spec.role, silent)
                kill_tree(process.pid)
                await gone
            await self._end(process, gone)
        finally:
            hanging.cancel()
            stopping.cancel()
            kill_group(process.pid)
            # What it wrote last is in the pipe already; a grandchild that holds the pipe open must not hold us.
            await asyncio.wait({output}, timeout=0.5)
            output.cancel()
            self._announce(None, ready=False)
        return gone.result(), ended - ready_at if ready_at is not None else 0.0

    async def _patiently(
        self, start: Coroutine[Any, Any, Process | Forked], starting: SlowStart
    ) -> Process | Forked | None:
        """The process once it is there; None where the imports that it waits for were given up, or at the stop."""
        task = asyncio.create_task(start)
        try:
            while not task.done() and not self._stopping.is_set() and not self._gives_up(starting, None):
                await asyncio.wait({task}, timeout=_LOOK_AT_START_SECONDS)
            return await task if task.done() else None
        finally:
            task.cancel()

    def _gives_up(self, starting: SlowStart, pid: int | None) -> bool:
        """Look at a start that goes on; whether it has to be ended."""
        now = time.monotonic()
        if self.spec.held is not None and self.spec.held():
            starting.hold(now)
            return False
        works = pid if pid is not None or self._nursery is None else self._nursery.pid
        starting.look(now, cpu_seconds(works) if works is not None else 0.0, self._log.lines)
        if word := starting.word(now):
            said = next((line.strip() for line in reversed(self._log.tail) if line.strip()), "")
            doing = said or ("it has written nothing yet" if pid is not None else "its modules are being imported")
            self._console.child(self.spec.role, f"{word}: {doing}")
        self._given_up = starting.failure(now)
        return bool(self._given_up)

    async def _hangs(self, pid: int) -> None:
        """Return when the process was ready and has not answered for too long."""
        lives, heard = self.spec.lives, None
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if lives is None or not self.ready:
                continue
            heard = heard or Listening(self._patience.hang_seconds, time.monotonic())
            try:
                answers = await lives(pid)
            except (OSError, ValueError):  # an answer that cannot be read
                answers = False
            if heard.hangs(answers, time.monotonic()):
                return

    async def _start_process(self) -> Process | Forked:
        spec = self.spec
        if self._nursery is not None and spec.imports:
            with suppress(NurseryGone):
                return await self._nursery.fork(spec.role, spec.command, spec.environ, spec.cwd, spec.imports)
        return await spawn(
            spec.command, environ=spec.environ, cwd=spec.cwd, death_signal=spec.death_signal, run_as=spec.run_as
        )

    async def _becomes_ready(self, process: Process | Forked, gone: asyncio.Task[int], starting: SlowStart) -> bool:
        looked = time.monotonic()
        while not gone.done() and not self._stopping.is_set():
            if await self.spec.ready(process.pid) and not gone.done():
                return True
            if time.monotonic() - looked > _LOOK_AT_START_SECONDS:
                looked = time.monotonic()
                if self._gives_up(starting, process.pid):
                    kill_tree(process.pid)
                    await gone
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
