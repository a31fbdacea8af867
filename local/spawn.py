"""How a child process is started: in a session of its own, ended by the kernel when its supervisor dies.

- A session of its own, so that Ctrl-C in the terminal reaches the supervisor alone, which keeps the order of stopping.
- PR_SET_PDEATHSIG (Linux) follows the *thread* that started the child: start children from the thread that lives as
  long as the supervisor (the event loop's), never from a pool. It is set after the change of user, which clears it.
"""

import asyncio
import ctypes
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

_PR_SET_PDEATHSIG = 1
# Looked up before any fork: after one, the child may only call what is loaded already.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True, slots=True)
class RunAs:
    """The user a child runs as, when the supervisor is root and the child must not be."""

    uid: int
    gid: int


async def spawn(
    command: Sequence[str | Path],
    *,
    environ: Mapping[str, str],
    cwd: Path,
    death_signal: signal.Signals = signal.SIGKILL,
    run_as: RunAs | None = None,
    split_output: bool = False,
    pass_fds: Sequence[int] = (),
) -> Process:
    """Start a child with both outputs in one pipe (`split_output`: in two), never inherited.

    A child that inherits our output and outlives us would hold a caller's pipe open.
    """
    user: dict[str, Any] = {}
    if run_as is not None:
        user = {"user": run_as.uid, "group": run_as.gid, "extra_groups": []}
    return await asyncio.create_subprocess_exec(
        *map(str, command),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE if split_output else STDOUT,
        env=dict(environ),
        cwd=cwd,
        start_new_session=True,
        pass_fds=pass_fds,
        umask=0o077,  # what a child writes into the data folder is its owner's alone
        preexec_fn=_bound_to_parent(death_signal),
        **user,
    )


def _bound_to_parent(death_signal: signal.Signals) -> Callable[[], None] | None:
    libc = _LIBC
    if libc is None:
        return None
    parent, number = os.getpid(), int(death_signal)

    def bind() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:  # it died between the fork and the line above
            os._exit(1)

    return bind


def kill_group(pid: int) -> None:
    """SIGKILL a child and what it started; nothing when all of it has ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_tree(pid: int) -> None:
    """SIGKILL a process with everything that it started, also what has a group of its own or is stopped."""
    started: list[psutil.Process] = []
    with suppress(psutil.Error):
        started = psutil.Process(pid).children(recursive=True)
    kill_group(pid)
    for process in started:
        with suppress(psutil.Error):
            process.kill()


def cpu_seconds(pid: int) -> float:
    """The processor time that a process and what it started have used; 0 when it has ended."""
    used = 0.0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                used += sum(each.cpu_times()[:4])  # of those that have ended, too
    return used


def is_stopped(pid: int) -> bool:
    """Whether somebody has stopped the process by a signal; one that a debugger holds is not meant."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def describe_exit(code: int) -> str:
    """`killed by SIGKILL`, or `exited with 3`."""
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exited with {code}"
