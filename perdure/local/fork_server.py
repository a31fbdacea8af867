"""The process that programs are forked from: it imports once what all of them import (ADR 20).

`python -m perdure.local.fork_server CHANNEL MODULE…` imports the modules one after the other. For each request on the
socket CHANNEL it forks a process that continues as `python PROGRAM …` would. Measured, imports take half to three
quarters of a program's start, and a killed program returns that much sooner.

A request is a message with two files: the program to run, as JSON, and the pipe for both its outputs. It waits until
the modules that it names are imported. The responses contain the pid, and later how the process ended.

The fork server ends with its supervisor or its channel, and the kernel then ends its forks. It has one thread and
starts no event loop, so that forked processes find none.
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from setproctitle import setproctitle

_PR_SET_PDEATHSIG = 1
_MAX_MESSAGE_BYTES = 64
_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class Request:
    """One program to fork."""

    number: int
    output: int
    """The pipe for stdout and stderr."""
    role: str
    arguments: tuple[str, ...]
    """The interpreter's arguments: a script or `-m` and a module, and the program's arguments."""
    environ: dict[str, str]
    cwd: str
    imports: frozenset[str]


class Forker:
    """Imports the modules and forks the programs."""

    def __init__(self, channel: socket.socket, modules: Sequence[str]) -> None:
        self._channel = channel
        self._to_import = list(modules)
        self._waiting: list[Request] = []
        self._wakeup, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        os.set_blocking(self._wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._wakeups = (self._wakeup, wakeup)

    def serve(self) -> Request:
        """Imports and forks until the channel ends, which ends the process. Returns only in each forked process."""
        while True:
            for request in [each for each in self._waiting if each.imports.isdisjoint(self._to_import)]:
                self._waiting.remove(request)
                if self._fork(request):
                    return request
            files = (self._channel.fileno(), self._wakeup)
            ready, _, _ = select.select(files, (), (), 0 if self._to_import else None)
            if self._wakeup in ready:
                os.read(self._wakeup, 4_096)
                self._reap()
            if self._channel.fileno() in ready:
                self._waiting.append(self._receive())
            elif self._to_import:
                _import(self._to_import.pop(0))

    def _receive(self) -> Request:
        message, files, _, _ = socket.recv_fds(self._channel, _MAX_MESSAGE_BYTES, 2)
        if not message:
            os._exit(0)
        program, output = files
        with os.fdopen(program, encoding="utf-8", errors="surrogateescape") as stream:
            request: dict[str, Any] = json.load(stream)
        return Request(
            int(message),
            output,
            request["role"],
            tuple(request["arguments"]),
            request["environ"],
            request["cwd"],
            frozenset(request["imports"]),
        )

    def _fork(self, request: Request) -> bool:
        """Returns whether this is the forked process."""
        parent = os.getpid()
        gc.freeze()  # keeps memory pages shared, because garbage collection does not write to them
        pid = os.fork()
        if pid:
            os.close(request.output)
            self._send({"number": request.number, "pid": pid})
            return False
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the supervisor died between the fork and the line above
            os._exit(1)
        for descriptor in (*self._wakeups, self._channel.detach(), *(each.output for each in self._waiting)):
            os.close(descriptor)
        return True

    def _reap(self) -> None:
        """Reports the forks that have ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self._send({"pid": pid, "code": os.waitstatus_to_exitcode(status)})

    def _send(self, response: dict[str, int]) -> None:
        try:
            self._channel.send(json.dumps(response).encode())
        except OSError:  # the supervisor has ended, and the kernel is about to end this process too
            os._exit(0)


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except Exception:  # a program that needs the module reports the error in its own log
        print(f"{module} was not preloaded:", file=sys.stderr)
        traceback.print_exc()


def run_program(request: Request) -> None:
    """Continues as the requested program; returns when it ends."""
    devnull = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((devnull, 0), (request.output, 1), (request.output, 2)):
        os.dup2(source, target)
    os.close(devnull)
    os.close(request.output)
    setproctitle(f"perdure: {request.role}")
    gc.enable()
    os.umask(0o077)
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.environ)
    first, *rest = request.arguments
    if first == "-m":
        sys.argv = rest
        sys.modules.pop(f"{rest[0]}.__main__", None)  # imported here for its own imports; runpy would warn about it
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    gc.disable()
    run_program(Forker(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:]).serve())
