"""The supervisor's side of the nursery: programs forked from it, each used like a process that was spawned."""

import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from local.home import Home
from local.lines import read_lines
from local.log_file import LogFile
from local.spawn import spawn

_LONGEST_ANSWER_BYTES = 256
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
    """One nursery, as long as it lives."""

    def __init__(self, process: Process, channel: socket.socket, log: LogFile) -> None:
        self._process = process
        self._channel = channel
        self._number = 0
        self._asked: dict[int, asyncio.Future[int]] = {}
        self._living: dict[int, asyncio.Future[int]] = {}
        self._ended: dict[int, int] = {}
        """How processes ended whose start is only being told."""
        asyncio.get_running_loop().add_reader(channel, self._hear)
        self._pump = asyncio.create_task(self._keep(log))

    @classmethod
    async def start(cls, home: Home, modules: Sequence[str], environ: Mapping[str, str], cwd: Path) -> "Nursery":
        """Start one that imports these modules, in this order. Raises: OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = (sys.executable, "-m", "local.nursery", str(theirs.fileno()), *modules)
            try:
                process = await spawn(command, environ=environ, cwd=cwd, pass_fds=(theirs.fileno(),))
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        return cls(process, ours, LogFile(home.log("nursery")))

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
        with os.fdopen(writes, "wb"), tempfile.TemporaryFile("w+", encoding="utf-8", errors="surrogateescape") as what:
            json.dump(asked, what)
            what.seek(0)
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
        self._lost()
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._pump

    def _hear(self) -> None:
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
        if self._channel.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._channel)
            self._channel.close()
        for told in self._asked.values():
            if not told.done():
                told.set_exception(NurseryGone())
        for ended in self._living.values():
            ended.set_result(-signal.SIGKILL)
        self._asked.clear()
        self._living.clear()

    async def _keep(self, log: LogFile) -> None:
        assert self._process.stdout is not None
        async for line in read_lines(self._process.stdout):
            log.write(line)
        log.close()
