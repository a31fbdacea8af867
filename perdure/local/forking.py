"""The supervisor's side of the fork server (ADR 20): keeps one running and requests forks from it.

The process itself is fork_server.py. Forked programs have the interface of spawned processes.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from perdure.local.data_dir import DataDir
from perdure.local.output import Console, LogFile, read_lines
from perdure.local.processes import (
    PROBE_SECONDS,
    HangDetector,
    TimeLimits,
    describe_exit,
    is_stopped,
    kill_group,
    spawn,
)

_MAX_RESPONSE_BYTES = 256
_ROLE = "fork-server"
_MIN_UPTIME_SECONDS = 10.0
"""A fork server that lived for less time has failed."""
_RETRY_PAUSE_SECONDS = 5.0
"""The pause after a failure; each failure in a row adds this much."""
_LAST_OUTPUT_SECONDS = 1.0
"""Seconds for which descendants of an ended process may still write to its pipe."""


class ForkServerGone(Exception):
    """The fork server has died. A program is then started separately, which takes longer and is otherwise the same."""


class ForkedProcess:
    """A forked process, with the parts of `asyncio.subprocess.Process` that are used here."""

    def __init__(self, pid: int, stdout: asyncio.StreamReader) -> None:
        self.pid = pid
        self.stdout = stdout
        self.exit_code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def send_signal(self, number: signal.Signals) -> None:
        """Sends the signal, unless the process has ended."""
        if not self.exit_code.done():
            os.kill(self.pid, number)

    async def wait(self) -> int:
        """Waits for the end and returns the exit code, or the negative number of the signal."""
        return await asyncio.shield(self.exit_code)


class ForkServer:
    """One fork server, which is restarted when it dies.

    Its programs die with it. They wait for its restart, which does the imports once that all of them would do at the
    same time. If it dies soon after its start, it is paused for a while, and programs are started separately.
    """

    def __init__(
        self,
        home: DataDir,
        modules: Sequence[str],
        environ: Mapping[str, str],
        cwd: Path,
        console: Console,
        limits: TimeLimits | None = None,
    ) -> None:
        self._limits = limits or TimeLimits()
        self.pid: int | None = None
        """The live process; None during a restart."""
        self._modules = modules
        self._environ = environ
        self._cwd = cwd
        self._console = console
        self._log = LogFile(home.log(_ROLE))
        self._last_request = 0
        self._channel: socket.socket | None = None
        self._pid_futures: dict[int, asyncio.Future[int]] = {}
        self._exit_futures: dict[int, asyncio.Future[int]] = {}
        self._early_exits: dict[int, int] = {}
        """The ends of processes whose start has not been reported yet."""
        self._first_start_done = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Keeps one running; returns when the first one runs or could not be started."""
        self._task = asyncio.create_task(self._keep_running())
        await self._first_start_done.wait()

    async def _keep_running(self) -> None:
        quick_exits = 0
        while True:
            started_at = time.monotonic()
            try:
                cause = describe_exit(await self._run_once())
            except OSError as error:
                cause = f"cannot be started: {error.strerror}"
            finally:
                self._first_start_done.set()
                self._disconnect()
            quick_exits = 0 if time.monotonic() - started_at > _MIN_UPTIME_SECONDS else quick_exits + 1
            self._console.child(_ROLE, f"{cause}; the processes that were forked from it stop and restart with it")
            await asyncio.sleep(quick_exits * _RETRY_PAUSE_SECONDS)

    async def _run_once(self) -> int:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                command = (sys.executable, "-m", "perdure.local.fork_server", str(theirs.fileno()), *self._modules)
                process = await spawn(command, environ=self._environ, cwd=self._cwd, pass_fds=(theirs.fileno(),))
            self.pid = process.pid
            watcher = asyncio.create_task(self._kill_if_stopped(process.pid))
            try:
                ours.setblocking(False)
                asyncio.get_running_loop().add_reader(ours, self._receive)
                self._channel = ours
                self._first_start_done.set()
                assert process.stdout is not None
                async for line in read_lines(process.stdout):
                    self._log.write(line)
                return await process.wait()
            finally:
                watcher.cancel()
                self.pid = None
                self._disconnect()
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    async def _kill_if_stopped(self, pid: int) -> None:
        """Kills the fork server if a signal has stopped it; the kernel then kills its forks. While stopped, it could
        neither restart them nor report their ends."""
        detector = HangDetector(self._limits.hang_seconds, time.monotonic())
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            if detector.is_hung(not is_stopped(pid), time.monotonic()):
                break
        hung = f"has not responded for {self._limits.hang_seconds:.0f} s; killing and restarting it"
        self._console.child(_ROLE, hung)
        kill_group(pid)

    async def fork(
        self, role: str, command: Sequence[str], environ: Mapping[str, str], cwd: Path, imports: Sequence[str]
    ) -> ForkedProcess:
        """Forks a program of this interpreter, once what it needs is imported.

        Raises: ForkServerGone.
        """
        self._last_request += 1
        number, loop = self._last_request, asyncio.get_running_loop()
        request = {
            "role": role,
            "arguments": list(command[1:]),
            "environ": dict(environ),
            "cwd": str(cwd),
            "imports": list(imports),
        }
        reads, writes = os.pipe()
        stdout = asyncio.StreamReader()
        pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdout), os.fdopen(reads, "rb"))
        # In memory: a full disk must not prevent a program from restarting.
        request_file = os.fdopen(os.memfd_create("request"), "w+", encoding="utf-8", errors="surrogateescape")
        with os.fdopen(writes, "wb"), request_file:
            json.dump(request, request_file)
            request_file.seek(0)
            if self._channel is None:
                raise ForkServerGone
            try:
                socket.send_fds(self._channel, [str(number).encode()], [request_file.fileno(), writes])
            except OSError as error:
                raise ForkServerGone from error
        pid_future = self._pid_futures[number] = loop.create_future()
        pid = await pid_future
        forked = ForkedProcess(pid, stdout)
        forked.exit_code.add_done_callback(lambda _: loop.call_later(_LAST_OUTPUT_SECONDS, pipe.close))
        if pid in self._early_exits:
            forked.exit_code.set_result(self._early_exits.pop(pid))
        else:
            self._exit_futures[pid] = forked.exit_code
        return forked

    async def stop(self) -> None:
        """Ends it; the kernel ends its remaining forks."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self._log.close()

    def _receive(self) -> None:
        if self._channel is None:
            return
        try:
            message = self._channel.recv(_MAX_RESPONSE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._disconnect()
            return
        response = json.loads(message)
        if "number" in response:
            pid_future = self._pid_futures.pop(response["number"])
            if not pid_future.done():
                pid_future.set_result(response["pid"])
        elif (exit_future := self._exit_futures.pop(response["pid"], None)) is not None:
            exit_future.set_result(response["code"])
        else:
            self._early_exits[response["pid"]] = response["code"]

    def _disconnect(self) -> None:
        """Handles the loss of the fork server; the kernel has ended its forks too."""
        if self._channel is not None:
            asyncio.get_running_loop().remove_reader(self._channel)
            self._channel = None
        for pid_future in self._pid_futures.values():
            if not pid_future.done():
                pid_future.set_exception(ForkServerGone())
        for exit_future in self._exit_futures.values():
            exit_future.set_result(-signal.SIGKILL)
        self._pid_futures.clear()
        self._exit_futures.clear()
