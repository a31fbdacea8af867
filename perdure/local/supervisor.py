"""Launches and lists all children of one stack, and stops them in the order of their ranks.

Invariants: `stop` stops every child that was ever launched. The process registry on disk names each live child from the
moment it exists. The terminal gets one line for each part that becomes ready.
"""

import asyncio
import shutil
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from perdure.local.child import Child, ChildSpec
from perdure.local.data_dir import DataDir, StackError
from perdure.local.forking import ForkServer
from perdure.local.output import Console, Excerpt, LogFile, read_lines
from perdure.local.processes import (
    ProcessRegistry,
    StartProgress,
    TimeLimits,
    cpu_seconds,
    describe_exit,
    end_leftovers,
    kill_group,
    spawn,
)

_DISK_SECONDS = 5.0
_FREE_AGAIN_FACTOR = 1.1


class Supervisor:
    """Owns the children of one data folder; created by the holder of that folder."""

    def __init__(
        self, home: DataDir, console: Console, limits: TimeLimits | None = None, least_free_bytes: int = 0
    ) -> None:
        self.console = console
        self.least_free_bytes = least_free_bytes
        """Bytes that must be free on the disk of the data folder."""
        self._is_full = False
        console.disk_is_full = self._disk_is_full
        console.outage.down_roles = lambda: {role for role, child in self.children.items() if child.is_down}
        console.logs = home.logs
        self.home = home
        self.limits = limits or TimeLimits()
        self.children: dict[str, Child] = {}
        self.on_change: Callable[[], None] | None = None
        """Called after each start, readiness and end of a child."""
        self.close_callbacks: list[Callable[[], Coroutine[Any, Any, None]]] = []
        """Other things to end at the stop, before the children."""
        self._stopping = False
        self._write_fault = ""
        self._fork_server: ForkServer | None = None
        self._running_once: set[str] = set()
        ended = end_leftovers(home.registry_file)
        if ended:
            console.say(f"  removed leftovers of an earlier run: {', '.join(ended)}")
        self._registry = ProcessRegistry(home.registry_file)

    async def open_fork_server(self, modules: Sequence[str], environ: Mapping[str, str], cwd: Path) -> None:
        """Starts to fork children with shared imports from a process that has imported them.

        If the kernel cannot bind forks to the process that forks them, each child is started separately.
        """
        if sys.platform == "linux":
            self._fork_server = ForkServer(self.home, modules, environ, cwd, self.console, self.limits)
            await self._fork_server.start()

    async def launch(self, spec: ChildSpec, began: float | None = None) -> None:
        """Starts a child, waits until it is ready and reports it; afterwards it is kept running.

        `began` (monotonic) is when the work for it began, if its start needed preparations.

        Raises: StackError if it does not become ready.
        """
        if spec.role in self.children:
            raise StackError(f"two processes have the role {spec.role}")
        child = Child(spec, self.console, self._changed, self._fork_server, self.limits)
        self.children[spec.role] = child
        began = time.monotonic() if began is None else began
        await child.start()
        self.console.part(spec.role, "ready", time.monotonic() - began, spec.detail)

    async def run_once(
        self, role: str, command: tuple[str, ...], environ: Mapping[str, str], cwd: Path, detail: str = ""
    ) -> list[str]:
        """Runs a command to its end and returns the lines of its stdout, which are neither shown nor stored.

        Raises: StackError if it fails or makes no progress.
        """
        began = time.monotonic()
        log = LogFile(self.home.log(role))
        try:
            process = await spawn(command, environ=environ, cwd=cwd, split_output=True)
        except OSError as error:
            raise StackError(f"{role} cannot be started: {command[0]}: {error.strerror}") from error
        assert process.stdout is not None and process.stderr is not None
        work = asyncio.gather(
            _read_all_lines(process.stdout), self._show_lines(role, process.stderr, log), process.wait()
        )
        work.add_done_callback(_retrieve_exception)
        self._running_once.add(role)
        try:
            await self._wait_with_reports(role, work, process.pid, log)
        finally:
            self._running_once.discard(role)
            work.cancel()
            kill_group(process.pid)
            await process.wait()
            log.close()
        if process.returncode:
            last_line = log.last_line() or "it printed nothing"
            raise StackError(
                f"{role} failed ({describe_exit(process.returncode)}): {last_line} (log: {self.home.log(role)})"
            )
        self.console.part(role, "done", time.monotonic() - began, detail)
        return work.result()[0]

    async def _show_lines(self, role: str, stream: asyncio.StreamReader, log: LogFile) -> None:
        excerpt = Excerpt(partial(self.console.child, role))
        try:
            async for line in read_lines(stream):
                log.write(line)
                excerpt.take(line)
        finally:
            excerpt.close()

    async def _wait_with_reports(self, role: str, work: "asyncio.Future[Any]", pid: int, log: LogFile) -> None:
        progress = StartProgress(self.limits.start_seconds, time.monotonic())
        while not (await asyncio.wait({work}, timeout=3.0))[0]:
            now = time.monotonic()
            progress.record(now, cpu_seconds(pid), log.lines)
            last_line = log.last_line() or "it has not logged anything yet"
            if report := progress.report(now):
                self.console.child(role, f"{report}: {last_line}")
            if failure := progress.failure(now):
                raise StackError(f"{role} {failure}: {last_line} (log: {self.home.log(role)})")
        await work

    def pids(self) -> dict[str, int]:
        """Returns the live processes by role."""
        return {role: child.pid for role, child in self.children.items() if child.pid is not None}

    def waiting_roles(self) -> list[str]:
        """Returns the children that are started but not ready."""
        return [*self._running_once, *(role for role, child in self.children.items() if not child.ready)]

    def ready_roles(self) -> list[str]:
        return [role for role, child in self.children.items() if child.ready]

    @property
    def is_stopping(self) -> bool:
        """True if the stop has begun."""
        return self._stopping

    async def watch(self) -> None:
        """Raises the error that ended a child permanently, and does not return otherwise; children that die are
        restarted."""
        await run_together(self._watch_disk(), *(child.failed() for child in self.children.values()))

    async def _watch_disk(self) -> None:
        while True:
            self._disk_is_full()
            if self._write_fault:
                self.changed()
            await asyncio.sleep(_DISK_SECONDS)

    def _disk_is_full(self) -> bool:
        """Returns whether the disk of the data folder is nearly full. Reports each change once."""
        try:
            free = shutil.disk_usage(self.home.root).free
        except OSError:
            return self._is_full
        if not self._is_full and free < self.least_free_bytes:
            self._is_full = True
            least = f"{self.least_free_bytes / 1e6:.0f} MB (PERDURE_LEAST_FREE_BYTES)"
            self.console.say(
                f"  The disk of {self.home.root} is nearly full: {free / 1e6:.0f} MB are free, {least} are "
                "required. Free some space; until then, the API is not ready and writes can fail."
            )
        elif self._is_full and free > _FREE_AGAIN_FACTOR * self.least_free_bytes:
            self._is_full = False
            self.console.say(f"  The disk of {self.home.root} has {free / 1e6:.0f} MB free again.")
        return self._is_full

    async def stop(self, hurry: asyncio.Event | None = None) -> None:
        """Ends all children, rank after rank; once `hurry` is set, ends all remaining ones immediately with SIGKILL."""
        self._stopping = True
        await asyncio.gather(*(close() for close in self.close_callbacks))
        ranked = sorted(self.children.values(), key=lambda child: child.spec.stop_rank)
        for _, rank in groupby(ranked, key=lambda child: child.spec.stop_rank):
            await asyncio.gather(*(child.stop(hurry) for child in rank))
        if self._fork_server is not None:
            await self._fork_server.stop()

    def _changed(self, child: Child) -> None:
        with suppress(OSError):  # it is retried and reported in the next line
            if child.pid is None:
                self._registry.remove(child.spec.role)
            elif not child.ready:
                self._registry.add(child.spec.role, child.pid, child.spec.death_signal)
        self.changed()

    def changed(self) -> None:
        """Writes the process registry and calls `on_change`; during the stop it only writes the registry."""
        try:
            self._registry.save()
            if self.on_change is not None and not self._stopping:
                self.on_change()
            self._write_fault = ""
        except OSError as error:  # a full disk must not end running parts
            previous, self._write_fault = self._write_fault, error.strerror or "it fails"
            if previous != self._write_fault and not self._disk_is_full():
                self.console.say(f"  cannot write in {self.home.root}: {error.strerror}")


def _retrieve_exception(work: "asyncio.Future[Any]") -> None:
    """Retrieves the exception of a canceled task; otherwise asyncio reports with a traceback that it was never
    retrieved."""
    if not work.cancelled():
        work.exception()


async def _read_all_lines(stream: asyncio.StreamReader) -> list[str]:
    return [line async for line in read_lines(stream)]


async def run_together(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """Runs all of it in parallel and returns the results in order. The first failure cancels the others and is
    raised."""
    tasks = [asyncio.create_task(item) for item in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
