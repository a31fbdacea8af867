"""Which processes this stack has started, on disk, so that the next start can clear away what a crash left.

A process is known by pid and start time: a pid alone may belong to a stranger by now. Children also ask the kernel to
be ended with their supervisor (child.py); this file is for what that cannot reach, and for systems without it.
"""

import json
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

_SAME_START_SECONDS = 1.0
"""psutil counts start times from a boot time that moves a little when the clock is set."""
_PATIENCE_SECONDS = 8.0


class Roster:
    """The live children by role, rewritten at every start and end of one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records: dict[str, dict[str, Any]] = {}
        self._saved: dict[str, dict[str, Any]] = {}
        own = psutil.Process()
        self._supervisor = {"pid": own.pid, "started_at": own.create_time()}

    def add(self, role: str, pid: int, end_signal: signal.Signals) -> None:
        """Remember a child right after it was started; `end_signal` ends it when nobody supervises it any more."""
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
        """Forget a child that ended."""
        self._records.pop(role, None)
        self.save()

    def save(self) -> None:
        """Write the list if that has not been done, as on a full disk.

        Raises: OSError.
        """
        if self._records == self._saved:
            return
        # Not synced: after a power cut no process of ours is left to be found.
        fresh = self._path.with_name(self._path.name + ".new")
        fresh.touch(0o600)
        fresh.write_text(json.dumps(list(self._records.values()), indent=1) + "\n")
        fresh.replace(self._path)
        self._saved = dict(self._records)


@dataclass(frozen=True, slots=True)
class Found:
    """What of a list is alive now."""

    supervisor: int | None
    """The pid of who keeps these children; None where it is gone."""
    children: Mapping[str, int]
    """Pids by role."""


def look(path: Path) -> Found:
    """Who of the children on this list lives, and whether their supervisor does; nothing is changed."""
    children, supervisor = {}, None
    for record in _read(path):
        if alive(record["pid"], record["started_at"]) is not None:
            children[str(record["role"])] = int(record["pid"])
        keeper = record.get("supervisor")
        if isinstance(keeper, dict) and alive(keeper.get("pid", -1), keeper.get("started_at")) is not None:
            supervisor = int(keeper["pid"])
    return Found(supervisor, children)


def sweep(path: Path) -> list[str]:
    """End what an earlier supervisor left running and wait until it is gone; the roles that were found.

    Only for the holder of the data folder: nobody else may be using these processes.
    """
    found: list[str] = []
    processes: list[psutil.Process] = []
    descendants: list[psutil.Process] = []
    for record in _read(path):
        process = alive(record["pid"], record["started_at"])
        if process is None:
            continue
        found.append(record["role"])
        with suppress(psutil.Error):
            descendants += process.children(recursive=True)
        processes.append(process)
        with suppress(OSError):
            os.kill(process.pid, record["signal"])
    _wait_gone(processes, _PATIENCE_SECONDS)
    for process in (*processes, *descendants):
        with suppress(psutil.Error):
            process.kill()
    _wait_gone([*processes, *descendants], _PATIENCE_SECONDS)
    path.unlink(missing_ok=True)
    return found


def alive(pid: int, started_at: float | None = None) -> psutil.Process | None:
    """The process with this pid, if it runs and (when given) started then; a zombie does not run."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        if started_at is not None and abs(process.create_time() - started_at) > _SAME_START_SECONDS:
            return None
    except psutil.Error:
        return None
    return process


def _wait_gone(processes: list[psutil.Process], seconds: float) -> None:
    # psutil.wait_procs would wait in vain for an orphan that the machine's first process does not reap.
    deadline = time.monotonic() + seconds
    while any(process.is_running() and alive(process.pid) for process in processes) and time.monotonic() < deadline:
        time.sleep(0.02)


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        records = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    wanted = {"role", "pid", "started_at", "signal"}
    return [record for record in records if isinstance(record, dict) and wanted <= record.keys()]
