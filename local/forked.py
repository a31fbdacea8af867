"""The supervisor's side of the nursery: programs forked from it, each used like a process that was spawned."""

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

from local.console import Console
from local.home import Home
from local.lines import read_lines
from local.log_file import LogFile
from local.patience import LOOK_SECONDS, Listening, Patience
from local.spawn import describe_exit, is_stopped, kill_group, spawn

_LONGEST_ANSWER_BYTES = 256
_ROLE = "nursery"
_STEADY_SECONDS = 10.0
"""One that lived for less has failed."""
_PAUSE_SECONDS = 5.0
"""The pause after one that failed; each in a row is longer by this."""
_LAST_OUTPUT_SECONDS = 1.0
"""How long what a process started may go on writing to its pipe when it has ended."""


class NurseryGone(Exception):
    """It has died; a program is then started by itself, which takes longer and is otherwise the same."""


class Forked:
    """A process that was forked: what `asyncio.subprocess.Process` has of it, as far as it is used here."""

    def __init__(self, pid: int, stdout: asyncio.StreamReader) -> None:
        self.pid = pid
        self.stdout = stdout
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def send_signal(self, number: signal.Signals) -> None:
        """Send it, unless the process has ended."""
        if not self.ended.done():
            os.kill(self.pid, number)

    async def wait(self) -> int:
        """Its exit code when it has ended; of a signal the negative number."""
        return await asyncio.shield(self.ended)


class Nursery:
    """One nursery, which comes back when it dies.

    Its programs die with it; they wait for its next life, which imports once what all of them would at the same time.
    One that dies soon after its start is left alone for a while, and programs are started by themselves.
    """

    def __init__(
        self,
        home: Home,
        modules: Sequence[str],
        environ: Mapping[str, str],
        cwd: Path,
        console: Console,
        patience: Patience | None = None,
    ) -> None:
        self._patience = patience or Patience()
        self.pid: int | None = None
        """The live process, None between two."""
        self._modules = modules
        self._environ = environ
        self._cwd = cwd
        self._console = console
        self._log = LogFile(home.log(_ROLE))
        self._number = 0
        self._channel: socket.socket | None = None
        self._asked: dict[int, asyncio.Future[int]] = {}
        self._living: dict[int, asyncio.Future[int]] = {}
        self._ended: dict[int, int] = {}
        """How processes ended whose start is only being told."""
        self._begun = asyncio.Event()
        self._lives: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Keep one running from here on; returns when the first is there, or could not be started."""
        self._lives = asyncio.create_task(self._live())
        await self._begun.wait()

    async def _live(self) -> None:
        at_once = 0
        while True:
            began = time.monotonic()
            try:
                told = describe_exit(await self._one_life())
            except OSError as error:
                told = f"cannot be started: {error.strerror}"
            finally:
                self._begun.set()
                self._lost()
            at_once = 0 if time.monotonic() - began > _STEADY_SECONDS else at_once + 1
            self._console.child(_ROLE, f"{told}; the programs that were forked from it end with it and come back")
            await asyncio.sleep(at_once * _PAUSE_SECONDS)

    async def _one_life(self) -> int:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                command = (sys.executable, "-m", "local.nursery", str(theirs.fileno()), *self._modules)
                process = await spawn(command, environ=self._environ, cwd=self._cwd, pass_fds=(theirs.fileno(),))
            self.pid = process.pid
            watched = asyncio.create_task(self._end_if_stopped(process.pid))
            try:
                ours.setblocking(False)
                asyncio.get_running_loop().add_reader(ours, self._hear)
                self._channel = ours
                self._begun.set()
                assert process.stdout is not None
                async for line in read_lines(process.stdout):
                    self._log.write(line)
                return await process.wait()
            finally:
                watched.cancel()
                self.pid = None
                self._lost()
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    async def _end_if_stopped(self, pid: int) -> None:
        """Kill it when somebody has stopped it, and with it by the kernel what it has forked: without it none of those
        could be started again, or be told to have ended."""
        heard = Listening(self._patience.hang_seconds, time.monotonic())
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if heard.hangs(not is_stopped(pid), time.monotonic()):
                break
        silent = f"has not answered for {self._patience.hang_seconds:.0f} s; killing and restarting it"
        self._console.child(_ROLE, silent)
        kill_group(pid)

    async def fork(
        self, role: str, command: Sequence[str], environ: Mapping[str, str], cwd: Path, imports: Sequence[str]
    ) -> Forked:
        """Start a program of this interpreter from it, once it has imported what the program needs.

        Raises: NurseryGone.
        """
        self._number += 1
        number, loop = self._number, asyncio.get_running_loop()
        asked = {
            "role": role,
            "arguments": list(command[1:]),
            "environ": dict(environ),
            "cwd": str(cwd),
            "imports": list(imports),
        }
        reads, writes = os.pipe()
        stdout = asyncio.StreamReader()
        pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdout), os.fdopen(reads, "rb"))
        # In memory: a full disk must not keep a program from coming back.
        asked_file = os.fdopen(os.memfd_create("asked"), "w+", encoding="utf-8", errors="surrogateescape")
        with os.fdopen(writes, "wb"), asked_file as what:
            json.dump(asked, what)
            what.seek(0)
            if self._channel is None:
                raise NurseryGone
            try:
                socket.send_fds(self._channel, [str(number).encode()], [what.fileno(), writes])
            except OSError as error:
                raise NurseryGone from error
        told = self._asked[number] = loop.create_future()
        pid = await told
        forked = Forked(pid, stdout)
        forked.ended.add_done_callback(lambda _: loop.call_later(_LAST_OUTPUT_SECONDS, pipe.close))
        if pid in self._ended:
            forked.ended.set_result(self._ended.pop(pid))
        else:
            self._living[pid] = forked.ended
        return forked

    async def stop(self) -> None:
        """End it, and by the kernel what it still has."""
        if self._lives is not None:
            self._lives.cancel()
            await asyncio.wait({self._lives})
        self._log.close()

    def _hear(self) -> None:
        if self._channel is None:
            return
        try:
            message = self._channel.recv(_LONGEST_ANSWER_BYTES)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._lost()
            return
        answer = json.loads(message)
        if "number" in answer:
            told = self._asked.pop(answer["number"])
            if not told.done():
                told.set_result(answer["pid"])
        elif (ended := self._living.pop(answer["pid"], None)) is not None:
            ended.set_result(answer["code"])
        else:
            self._ended[answer["pid"]] = answer["code"]

    def _lost(self) -> None:
        """What it had forked has been ended by the kernel with it."""
        if self._channel is not None:
            asyncio.get_running_loop().remove_reader(self._channel)
            self._channel = None
        for told in self._asked.values():
            if not told.done():
                told.set_exception(NurseryGone())
        for ended in self._living.values():
            ended.set_result(-signal.SIGKILL)
        self._asked.clear()
        self._living.clear()
