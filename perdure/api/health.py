"""Health checks of the services that an API process depends on: they respond, they can write, and their disk has space.

Every check reads from each service, and writes every few seconds. Concurrent checks share one, so that callers cannot
create load with probes.
"""

import asyncio
import shutil
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from temporalio.client import Client

from perdure.core.status import disk_fault
from perdure.store import status as write_probes
from perdure.store.database import Database
from perdure.store.valkey import Valkey
from perdure.temporal import status

Check = Callable[[], Coroutine[Any, Any, None]]
CHECK_SECONDS = 2.0
WRITE_VALID_SECONDS = 5.0
"""The time for which a successful write counts for later checks."""
REQUIRED_PARTS = ("postgres", "temporal", "disk")
"""Services without which the API is not ready. If Valkey is unavailable, only live tokens are missing."""
_NO_ANSWER = "does not answer"
_WRITE_NOT_TESTED = "answers; write access was not checked because its permissions do not allow the check"
_FAULT_TEXTS: Mapping[str, Callable[[BaseException], str]] = {
    "postgres": write_probes.write_fault,
    "temporal": status.write_fault,
}
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
class Parts:
    """Checks the services for one process."""

    db: Database
    client: Client
    valkey: Valkey
    home: Path | None = None
    """The data folder, if the services' data is on a disk of this machine."""
    least_free_bytes: int = 0
    _written_at: dict[str, float] = field(default_factory=dict)
    _notes: dict[str, str] = field(default_factory=dict)
    _timed_out: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)
    """Checks that timed out and have not ended yet, by service."""
    _running_check: "asyncio.Task[dict[str, PartHealth]] | None" = None

    async def check(self) -> Mapping[str, PartHealth]:
        """Returns every service by name, within about `CHECK_SECONDS`."""
        if self._running_check is None or self._running_check.done():
            self._running_check = asyncio.create_task(self._check_parts())
        return await asyncio.shield(self._running_check)

    async def _check_parts(self) -> dict[str, PartHealth]:
        async def ping() -> None:
            await self.valkey.client.ping()

        results = await asyncio.gather(
            self._check_part("postgres", self._ping_postgres, lambda: write_probes.write_once(self.db)),
            self._check_part("temporal", self._ping_temporal, lambda: status.write_once(self.client)),
            self._check_part("valkey", ping, None),
        )
        health = dict(zip(("postgres", "temporal", "valkey"), results, strict=True))
        if self.home is not None:
            health["disk"] = PartHealth(disk_fault(_free_bytes(self.home), self.least_free_bytes))
        return health

    async def _ping_postgres(self) -> None:
        await self.db.pool.execute("SELECT 1")

    async def _ping_temporal(self) -> None:
        await self.client.service_client.check_health()

    async def _check_part(self, name: str, read: Check, write: Check | None) -> PartHealth:
        is_write_due = (
            write is not None and monotonic() - self._written_at.get(name, -WRITE_VALID_SECONDS) >= WRITE_VALID_SECONDS
        )
        try:
            await self._run_with_timeout(name, write if write is not None and is_write_due else read)
        except Exception as error:  # Any error means that the service is not healthy.
            if is_write_due and status.not_tested(error):
                self._written_at[name], self._notes[name] = monotonic(), _WRITE_NOT_TESTED
                return PartHealth(note=_WRITE_NOT_TESTED)
            self._written_at.pop(name, None)
            return PartHealth(_FAULT_TEXTS.get(name, _no_answer)(error))
        if is_write_due:
            self._written_at[name] = monotonic()
            self._notes.pop(name, None)
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


def _no_answer(_error: BaseException) -> str:
    return _NO_ANSWER


def _free_bytes(folder: Path) -> int:
    """Returns the free space of the folder's disk, or 0 if the folder cannot be read."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0
