"""One supervised child: started, watched until ready, restarted when it dies, stopped step by step.

Invariants: There is exactly one process of a role at a time. A child that was healthy returns within half a second. The
pauses of a child that keeps failing get longer. A child that exits with an error before it was ever ready ends the
start. A child that no longer responds is killed and restarted like one that died.
"""

import asyncio
import re
import signal
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from perdure.local.data_dir import StackError
from perdure.local.forking import ForkedProcess, ForkServer, ForkServerGone
from perdure.local.output import Console, Excerpt, LogFile, read_lines
from perdure.local.ports import HOST, PortInUse, configured_port_in_use, conflicting_port
from perdure.local.processes import (
    PROBE_SECONDS,
    HangDetector,
    RunAs,
    StartProgress,
    TimeLimits,
    cpu_seconds,
    describe_exit,
    kill_group,
    kill_tree,
    spawn,
)

_MIN_READY_SECONDS = 1.0
"""A child that was ready for less time counts as one that failed to start."""
_READY_PROBE_SECONDS = 0.03
_AFTERMATH_SECONDS = 5.0
"""Seconds after its return during which others may still report that a component was unavailable."""
_PROGRESS_SECONDS = 3.0
_CRASH_SIGNALS = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS}
"""Signals that a process causes itself. The others come from outside, such as SIGKILL if memory is short."""
_SHOWN_LAST_LINES = 5
_RESTART_DELAYS_SECONDS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """All properties of a child that are known before it starts."""

    role: str
    """Its name in run.json, in the log and on the terminal."""
    command: tuple[str, ...]
    environ: Mapping[str, str]
    """Its complete environment."""
    cwd: Path
    log: Path
    ready: Callable[[int], Awaitable[bool]]
    """Called with its pid every few hundredths of a second until it returns true."""
    stop_steps: tuple[tuple[signal.Signals, float], ...]
    """The steps to stop it: a signal and its seconds each; SIGKILL follows after the last one."""
    stop_rank: int
    """Lower ranks are stopped first; children of a rank stop together."""
    death_signal: signal.Signals = signal.SIGKILL
    """The signal that the kernel sends it when the supervisor dies."""
    run_as: RunAs | None = None
    shown_lines: re.Pattern[str] | None = None
    """The lines that reach the terminal while it is ready; None for all, always. The log file has every line."""
    before_start: Callable[[], None] | None = None
    """Removes what an earlier process of this role left behind."""
    imports: tuple[str, ...] = ()
    """The imports that it shares with others: if set, it is forked from the fork server, if there is one."""
    responds: Callable[[int], Awaitable[bool]] | None = None
    """Called with its pid regularly while it is ready; returns whether it responds. None: it never counts as hung.
    """
    hung: Callable[[float], None] = lambda _seconds: None
    """Called before it is killed because it has not responded for so many seconds."""
    ports: tuple[int, ...] = ()
    """The ports that it listens on."""
    port_setting: str = ""
    """The setting that defines its port; empty if the stack chooses its ports."""
    waits_for_others: Callable[[], bool] | None = None
    """Returns whether it waits for other parts before its start; that time does not count."""
    detail: str = ""
    """The text to print besides `ready`."""
    advice: str = ""
    """Advice that follows the message of a failed start, after a semicolon."""
    diagnose: Callable[[Sequence[str]], str] | None = None
    """Returns better advice, in the same form, if its last lines name a fault that it knows; else empty."""
    hidden_lines: re.Pattern[str] | None = None
    """The lines that never reach the terminal, because their advice is wrong here."""


def restart_delay_seconds(failures: int) -> float:
    """Returns the pause before the next start after `failures` failures in a row (0: it was healthy): 0.1 0.5 1 2 4 8
    15 15 …"""
    return _RESTART_DELAYS_SECONDS[min(failures, len(_RESTART_DELAYS_SECONDS) - 1)]


class Child:
    """A role that is kept running from `start` to `stop`."""

    def __init__(
        self,
        spec: ChildSpec,
        console: Console,
        changed: Callable[["Child"], None],
        fork_server: ForkServer | None = None,
        limits: TimeLimits | None = None,
    ) -> None:
        self.spec = spec
        self._limits = limits or TimeLimits()
        self._give_up_reason = ""
        """The reason why the first start was aborted."""
        self._fork_server = fork_server
        self.pid: int | None = None
        """The live process; None during a restart."""
        self.ready = False
        self.restarts = 0
        self._ready_again_at = -_AFTERMATH_SECONDS
        self._console = console
        self._changed = changed
        self._log = LogFile(spec.log)
        self._first_ready = asyncio.Event()
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_down(self) -> bool:
        """True if it was ready and is restarting now, or has just restarted."""
        is_restarting = self._first_ready.is_set() and not self.ready
        return is_restarting or time.monotonic() - self._ready_again_at < _AFTERMATH_SECONDS

    async def start(self) -> None:
        """Starts it and waits until it is ready.

        Raises: StackError if it exits with an error first, or makes no progress.
        """
        self._task = asyncio.create_task(self._keep_running(), name=f"child {self.spec.role}")
        ready = asyncio.create_task(self._first_ready.wait())
        try:
            await asyncio.wait({ready, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if not self._first_ready.is_set() and self._task.done():
            await self._task

    async def stop(self, hurry: asyncio.Event | None = None) -> None:
        """Ends it permanently with its stop steps; once `hurry` is set, with SIGKILL."""
        if hurry is not None:
            self._hurry = hurry
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait({self._task})
        self._log.close()

    async def failed(self) -> None:
        """Waits until the part is abandoned or stopped."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def _keep_running(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            code, ready_for = await self._run_once()
            if self._stopping.is_set():
                return
            if self._give_up_reason and not self._first_ready.is_set():
                raise StackError(self._failure_message(self._give_up_reason))
            if (code >= 0 or -code in _CRASH_SIGNALS) and not self._first_ready.is_set():
                raise self._start_failure(code)
            if self._give_up_reason:
                self._console.child(self.spec.role, self._give_up_reason)
            failures = 0 if ready_for >= _MIN_READY_SECONDS else failures + 1
            delay = restart_delay_seconds(failures)
            cause = "" if ready_for else self._last_line_suffix()
            self._console.child(self.spec.role, f"{describe_exit(code)}{cause}; restarting in {delay:.1f} s")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)
            self.restarts += 1

    async def _run_once(self) -> tuple[int, float]:
        """Runs it once; returns the exit code, and for how many seconds it was ready."""
        spec = self.spec
        if spec.before_start is not None:
            spec.before_start()
        progress = StartProgress(self._limits.start_seconds, time.monotonic())
        try:
            process = await self._wait_for_process(self._start_process(), progress)
        except OSError as error:
            self._log.write(f"{spec.command[0]}: {error.strerror}")
            return 127, 0.0
        if process is None:
            return -signal.SIGKILL, 0.0
        self._set_state(process.pid, ready=False)
        output = asyncio.create_task(self._read_output(process))
        exited = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        hung = asyncio.create_task(self._wait_until_hung(process.pid))
        ready_at: float | None = None
        try:
            if await self._wait_until_ready(process, exited, progress):
                ready_at = self._mark_ready(process.pid)
            await asyncio.wait({exited, stopping, hung}, return_when=asyncio.FIRST_COMPLETED)
            ended = time.monotonic()
            if hung.done() and not exited.done() and not stopping.done():
                report = f"has not responded for {self._limits.hang_seconds:.0f} s; killing and restarting it"
                self._console.child(spec.role, report)
                spec.hung(self._limits.hang_seconds)
                kill_tree(process.pid)
                await exited
            await self._end(process, exited)
        finally:
            hung.cancel()
            stopping.cancel()
            kill_group(process.pid)
            # Its last output is already in the pipe; a descendant that keeps the pipe open must not block this.
            await asyncio.wait({output}, timeout=0.5)
            output.cancel()
            self._set_state(None, ready=False)
        return exited.result(), ended - ready_at if ready_at is not None else 0.0

    def _mark_ready(self, pid: int) -> float:
        now = time.monotonic()
        self._set_state(pid, ready=True)
        if self._first_ready.is_set():
            self._ready_again_at = now
            self._console.child(self.spec.role, "ready again")
        self._first_ready.set()
        return now

    async def _wait_for_process(
        self, start: Coroutine[Any, Any, Process | ForkedProcess], progress: StartProgress
    ) -> Process | ForkedProcess | None:
        """Returns the process once it exists, or None if the imports that it waits for were given up, or at the
        stop."""
        task = asyncio.create_task(start)
        try:
            while not task.done() and not self._stopping.is_set() and not self._must_give_up(progress, None):
                await asyncio.wait({task}, timeout=_PROGRESS_SECONDS)
            return await task if task.done() else None
        finally:
            task.cancel()

    def _must_give_up(self, progress: StartProgress, pid: int | None) -> bool:
        """Records the progress of a start; returns whether it must be ended."""
        now = time.monotonic()
        if self.spec.waits_for_others is not None and self.spec.waits_for_others():
            progress.exclude_wait(now)
            return False
        watched_pid = pid if pid is not None or self._fork_server is None else self._fork_server.pid
        progress.record(now, cpu_seconds(watched_pid) if watched_pid is not None else 0.0, self._log.lines)
        if report := progress.report(now):
            activity = self._log.last_line() or (
                "it has not logged anything yet" if pid is not None else "it is importing its modules"
            )
            self._console.child(self.spec.role, f"{report}: {activity}")
        self._give_up_reason = progress.failure(now)
        return bool(self._give_up_reason)

    async def _wait_until_hung(self, pid: int) -> None:
        """Returns when the process was ready and has not responded for too long."""
        probe, detector = self.spec.responds, None
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            if probe is None or not self.ready:
                continue
            detector = detector or HangDetector(self._limits.hang_seconds, time.monotonic())
            try:
                responds = await probe(pid)
            except (OSError, ValueError):  # an unreadable response
                responds = False
            if detector.is_hung(responds, time.monotonic()):
                return

    async def _start_process(self) -> Process | ForkedProcess:
        spec = self.spec
        if self._fork_server is not None and spec.imports:
            with suppress(ForkServerGone):
                return await self._fork_server.fork(spec.role, spec.command, spec.environ, spec.cwd, spec.imports)
        return await spawn(
            spec.command, environ=spec.environ, cwd=spec.cwd, death_signal=spec.death_signal, run_as=spec.run_as
        )

    async def _wait_until_ready(
        self, process: Process | ForkedProcess, exited: asyncio.Task[int], progress: StartProgress
    ) -> bool:
        checked_at = time.monotonic()
        while not exited.done() and not self._stopping.is_set():
            if await self.spec.ready(process.pid) and not exited.done():
                return True
            if time.monotonic() - checked_at > _PROGRESS_SECONDS:
                checked_at = time.monotonic()
                if self._must_give_up(progress, process.pid):
                    kill_tree(process.pid)
                    await exited
            await asyncio.wait({exited}, timeout=_READY_PROBE_SECONDS)
        return False

    async def _end(self, process: Process | ForkedProcess, exited: asyncio.Task[int]) -> None:
        hurry = asyncio.create_task(self._hurry.wait())
        for number, seconds in self.spec.stop_steps:
            if exited.done() or hurry.done():
                break
            with suppress(ProcessLookupError):
                process.send_signal(number)
            await asyncio.wait({exited, hurry}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not exited.done():
            kill_group(process.pid)
            await exited

    async def _read_output(self, process: Process | ForkedProcess) -> None:
        assert process.stdout is not None
        excerpt = Excerpt(partial(self._console.child, self.spec.role))
        try:
            async for line in read_lines(process.stdout):
                self._log.write(line)
                pattern = self.spec.shown_lines
                if pattern is None or (self.ready and not self._stopping.is_set() and pattern.search(line)):
                    excerpt.take(line)
        finally:
            excerpt.close()

    def _set_state(self, pid: int | None, *, ready: bool) -> None:
        self.pid, self.ready = pid, ready
        self._changed(self)

    def _start_failure(self, code: int) -> StackError:
        """Returns the error of a child that exited before it was ready."""
        port = conflicting_port(self.spec.ports, self._log.tail)
        if port is None:
            self._show_last_lines()
            return StackError(self._failure_message(f"did not start ({describe_exit(code)})"))
        if self.spec.port_setting:
            return configured_port_in_use(port, self.spec.port_setting)
        where = f"port {port} on {HOST} is in use by another process"
        return PortInUse(f"{self.spec.role} did not start: {where} (log: {self.spec.log})")

    def _show_last_lines(self) -> None:
        """Shows the end of the log of a child whose lines do not reach the terminal before it is ready."""
        if self.spec.shown_lines is not None:
            for line in self._last_lines()[-_SHOWN_LAST_LINES:]:
                self._console.child(self.spec.role, line)

    def _failure_message(self, what: str) -> str:
        """Returns one line: what happened, the child's own last informative line, the file with the rest, and what to
        do."""
        known = self.spec.diagnose(self._last_lines()) if self.spec.diagnose is not None else ""
        return f"{self.spec.role} {what}{self._last_line_suffix()} (log: {self.spec.log}){known or self.spec.advice}"

    def _last_lines(self) -> list[str]:
        """Returns the lines at the end of the log that can be shown."""
        pattern = self.spec.hidden_lines
        return [line.strip() for line in self._log.tail if line.strip() and not (pattern and pattern.search(line))]

    def _last_line_suffix(self) -> str:
        """Returns the last informative line of the log after a colon, if there is one."""
        lines = self._last_lines()
        pattern = self.spec.shown_lines
        informative = [line for line in lines if pattern is not None and pattern.search(line)] or lines
        return f": {informative[-1]}" if informative else ""
