"""Health checks of the services that an API process depends on: they respond, they can write, and their disk has space.

Every check reads from each service, and writes every few seconds. A write of a request that met a full, read-only or
locked store makes the service unhealthy too. Concurrent checks share one, so that callers cannot create load with
probes.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from temporalio.client import Client

from perdure.core.status import HANG_SECONDS, disk_fault, hang_fault
from perdure.store import status as write_probes
from perdure.store.database import Database
from perdure.store.valkey import Valkey
from perdure.telemetry.heartbeat import silent_processes
from perdure.temporal import status

Check = Callable[[], Coroutine[Any, Any, None]]
CHECK_SECONDS = 2.0
WRITE_VALID_SECONDS = 5.0
"""The time for which a write counts for later checks: a successful one of a check, or a failed one of a request."""
UNSEEN_SECONDS = 60.0
"""The time for which a failed write of a request counts if the checks do not see the fault."""
_RETRY_SECONDS = 1.0
"""The minimum time between two writes of a check."""
_REPORT_SECONDS = 10.0
"""The maximum time from the beginning of a request's write to its report: the Temporal client repeats that long."""
_PROBE_BYTES = 1 << 20
"""The space that a write probe takes on the disk of the data folder for a moment."""
REQUIRED_PARTS = ("postgres", "temporal", "disk")
"""Services without which the API is not ready. If Valkey is unavailable, only live tokens are missing."""
_NO_ANSWER = "does not answer"
_WRITE_NOT_TESTED = "answers; write access was not checked because its permissions do not allow the check"
REQUESTS = Histogram("perdure_http_request_seconds", "Request duration", ["method", "route", "status"])
TURNS_STARTED = Counter("perdure_turns_started", "Turns accepted or queued", ["agent"])
DECISIONS = Counter("perdure_decisions", "Decisions on approvals", ["decision"])
STREAMS = Gauge("perdure_streams", "Open event streams")
PERIMETER_EVENTS = Counter(
    "perdure_front_door", "Requests rejected before routing, and forwarding headers from unknown proxies", ["event"]
)


@dataclass(frozen=True, slots=True)
class PartHealth:
    """The result of one check of a service."""

    fault: str = ""
    """A description of the fault; empty if the service is healthy."""
    note: str = ""
    """A property that could not be determined."""


@dataclass(slots=True)
class _Failure:
    """The last write of a request that failed. The times are monotonic."""

    at: float
    fault: str
    checked_at: float | None = None
    """The time at which a check wrote although writes of requests failed. None if none did."""
    is_unseen: bool = False
    """True if writes of requests failed before and after that. The checks then do not see the fault."""


@dataclass(slots=True)
class FailedWrites:
    """The last writes of this process's requests that the storage of a service rejected.

    The clients report every error here, also those that no response contains. The service then counts as unhealthy for
    `WRITE_VALID_SECONDS`, and afterwards until a write of a check succeeds. A fault that the checks do not see counts
    for `UNSEEN_SECONDS`.
    """

    _last: dict[str, _Failure] = field(default_factory=dict)

    def record_postgres(self, error: BaseException) -> None:
        """Records an error of a transaction, if it is about the storage."""
        self._record("postgres", write_probes.storage_fault(error))

    def record_temporal(self, error: BaseException) -> None:
        """Records an error of a start or signal, if it is about the storage."""
        self._record("temporal", status.storage_fault(error))

    def record_start(self) -> None:
        """Records that Temporal stored a start or a signal. Another one that failed just now still counts."""
        self._rate_checks("temporal", None)

    def record_check(self, part: str, began: float, *, wrote: bool) -> None:
        """Records whether a check that began then could write."""
        last = self._last.get(part)
        if not wrote:
            self._rate_checks(part, None)
        elif last is not None and last.checked_at is None and last.at < began:
            self._rate_checks(part, began)

    def recent_fault(self, part: str) -> str:
        """Returns the fault of the service by a write that failed just now; otherwise an empty text."""
        last = self._last.get(part)
        if last is None:
            return ""
        seconds = UNSEEN_SECONDS if last.is_unseen else WRITE_VALID_SECONDS
        return last.fault if monotonic() - last.at < seconds else ""

    def _rate_checks(self, part: str, checked_at: float | None) -> None:
        if last := self._last.get(part):
            last.checked_at, last.is_unseen = checked_at, last.is_unseen and checked_at is not None

    def _record(self, part: str, fault: str) -> None:
        if not fault:
            return
        new, last = _Failure(monotonic(), fault), self._last.get(part)
        if last is not None and last.checked_at is not None and new.at - last.at < UNSEEN_SECONDS:
            new.checked_at = last.checked_at
            new.is_unseen = last.is_unseen or new.at - last.checked_at > _REPORT_SECONDS
        self._last[part] = new


@dataclass(slots=True)
class Parts:
    """Checks the services for one process."""

    db: Database
    client: Client
    valkey: Valkey
    home: Path | None = None
    """The data folder, if the services' data is on a disk of this machine."""
    least_free_bytes: int = 0
    failed_writes: FailedWrites = field(default_factory=FailedWrites)
    gate: Path | None = None
    """The gate of an embedded stack, in the folder with the heartbeats of its programs."""
    _written_at: dict[str, float] = field(default_factory=dict)
    _tried_at: dict[str, float] = field(default_factory=dict)
    _faults: dict[str, str] = field(default_factory=dict)
    """The faults of the last writes, by service."""
    _notes: dict[str, str] = field(default_factory=dict)
    _timed_out: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)
    """Checks that timed out and have not ended yet, by service."""
    _disk_write: "asyncio.Task[OSError | None] | None" = None
    _running_check: "asyncio.Task[dict[str, PartHealth]] | None" = None

    async def check(self) -> Mapping[str, PartHealth]:
        """Returns every service by name, within about `CHECK_SECONDS`."""
        if self._running_check is None or self._running_check.done():
            self._running_check = asyncio.create_task(self._check_parts())
        return await asyncio.shield(self._running_check)

    async def _check_parts(self) -> dict[str, PartHealth]:
        async def ping() -> None:
            await self.valkey.client.ping()

        checks = {
            "postgres": self._check_part("postgres", self._ping_postgres, lambda: write_probes.write_once(self.db)),
            "temporal": self._check_part("temporal", self._ping_temporal, lambda: status.write_once(self.client)),
            "valkey": self._check_part("valkey", ping, None),
        }
        if self.home is not None:
            checks["disk"] = self._check_disk(self.home)
        if self.gate is not None:
            checks["processes"] = _check_processes(self.gate)
        return dict(zip(checks, await asyncio.gather(*checks.values()), strict=True))

    async def _check_disk(self, home: Path) -> PartHealth:
        if fault := disk_fault(_free_bytes(home), self.least_free_bytes):
            return PartHealth(fault)
        return await self._check_part("disk", _nothing, lambda: self._write_blocks(home))

    async def _write_blocks(self, home: Path) -> None:
        """Raises: OSError. If an earlier write has not ended, waits for it, so that a disk that hangs takes one thread
        only."""
        if self._disk_write is None or self._disk_write.done():
            self._disk_write = asyncio.create_task(asyncio.to_thread(_take_blocks, home))
        if error := await asyncio.shield(self._disk_write):
            raise error

    async def _ping_postgres(self) -> None:
        await self.db.pool.execute("SELECT 1")

    async def _ping_temporal(self) -> None:
        await self.client.service_client.check_health()

    async def _check_part(self, name: str, read: Check, write: Check | None) -> PartHealth:
        failed = self.failed_writes.recent_fault(name)
        if failed:
            self._written_at.pop(name, None)
        health = await self._probe_part(name, read, write)
        return PartHealth(failed) if failed and not health.fault else health

    async def _probe_part(self, name: str, read: Check, write: Check | None) -> PartHealth:
        began = monotonic()
        is_stale = write is not None and began - self._written_at.get(name, -WRITE_VALID_SECONDS) >= WRITE_VALID_SECONDS
        has_tried = began - self._tried_at.get(name, -_RETRY_SECONDS) < _RETRY_SECONDS
        if is_stale and has_tried and name in self._faults:
            return PartHealth(self._faults[name])
        if write is None or not is_stale or has_tried:
            return await self._read_part(name, read)
        self._tried_at[name] = began
        try:
            await self._run_with_timeout(name, write)
        except Exception as error:  # Any error means that the service is not healthy.
            if status.not_tested(error):
                self._set_written(name, began, _WRITE_NOT_TESTED)
                return PartHealth(note=_WRITE_NOT_TESTED)
            self._written_at.pop(name, None)
            self._faults[name] = _FAULT_TEXTS[name](error)
            self.failed_writes.record_check(name, began, wrote=False)
            return PartHealth(self._faults[name])
        self._set_written(name, began, "")
        self.failed_writes.record_check(name, began, wrote=True)
        return PartHealth()

    def _set_written(self, name: str, began: float, note: str) -> None:
        """Records a write that is valid from `began`, because a write that failed meanwhile needs another check."""
        self._written_at[name], self._notes[name] = began, note
        self._faults.pop(name, None)

    async def _read_part(self, name: str, read: Check) -> PartHealth:
        try:
            await self._run_with_timeout(name, read)
        except Exception as error:  # Any error means that the service is not healthy.
            self._written_at.pop(name, None)
            return PartHealth(_FAULT_TEXTS[name](error))
        return PartHealth(note=self._notes.get(name, ""))

    async def _run_with_timeout(self, name: str, check: Check) -> None:
        """Runs a check with a timeout. Does not wait until the cancelled check has ended, which can take long.

        Raises: TimeoutError; the errors of the check.
        """
        if name in self._timed_out:
            raise TimeoutError
        task = asyncio.create_task(check())
        done, _ = await asyncio.wait({task}, timeout=CHECK_SECONDS)
        if done:
            await task
            return
        self._timed_out[name] = task
        task.add_done_callback(lambda ended: self._forget_check(name, ended))
        task.cancel()
        raise TimeoutError

    def _forget_check(self, name: str, task: "asyncio.Task[None]") -> None:
        del self._timed_out[name]
        if not task.cancelled():
            task.exception()  # The late error no longer matters.


async def _nothing() -> None:
    pass


async def _check_processes(gate: Path) -> PartHealth:
    return PartHealth(hang_fault(silent_processes(gate, HANG_SECONDS)))


def _no_answer(_error: BaseException) -> str:
    return _NO_ANSWER


def _no_space(error: BaseException) -> str:
    reason = getattr(error, "strerror", None) or "it does not complete a write in time"
    return f"cannot write in the data folder: {reason}; free some space, or make the disk writable"


_FAULT_TEXTS: Mapping[str, Callable[[BaseException], str]] = {
    "postgres": write_probes.write_fault,
    "temporal": status.write_fault,
    "valkey": _no_answer,
    "disk": _no_space,
}


def _take_blocks(folder: Path) -> OSError | None:
    """Writes a file without a name, and removes it. Returns the error of a disk that has no room or accepts no
    writes."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            remaining = _PROBE_BYTES
            while remaining:
                remaining -= file.write(b"x" * remaining)
    except OSError as error:
        return error
    return None


def _free_bytes(folder: Path) -> int:
    """Returns the free space of the folder's disk, or 0 if the folder cannot be read."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0
