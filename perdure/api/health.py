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

Ask = Callable[[], Coroutine[Any, Any, None]]
LOOK_SECONDS = 2.0
WRITE_SECONDS = 5.0
"""The time for which a successful write counts for later checks."""
NEEDED = ("postgres", "temporal", "disk")
"""Services without which the API is not ready. If Valkey is unavailable, only live tokens are missing."""
_NO_ANSWER = "does not answer"
_WRITE_NOT_TESTED = "answers; write access was not checked because its permissions do not allow the check"


@dataclass(frozen=True, slots=True)
class PartLook:
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
    _hanging: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)
    """Checks that timed out and have not ended yet, by service."""
    _reading: "asyncio.Task[dict[str, PartLook]] | None" = None

    async def look(self) -> Mapping[str, PartLook]:
        """Returns every service by name, within about `LOOK_SECONDS`."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_parts())
        return await asyncio.shield(self._reading)

    async def _read_parts(self) -> dict[str, PartLook]:
        async def ping() -> None:
            await self.valkey.client.ping()

        looks = await asyncio.gather(
            self._read_part("postgres", self._read_postgres, lambda: write_probes.write_once(self.db)),
            self._read_part("temporal", self._read_temporal, lambda: status.write_once(self.client)),
            self._read_part("valkey", ping, None),
        )
        found = dict(zip(("postgres", "temporal", "valkey"), looks, strict=True))
        if self.home is not None:
            found["disk"] = PartLook(disk_fault(_free_bytes(self.home), self.least_free_bytes))
        return found

    async def _read_postgres(self) -> None:
        await self.db.pool.fetchval("SELECT 1")

    async def _read_temporal(self) -> None:
        await self.client.service_client.check_health()

    async def _read_part(self, name: str, read: Ask, write: Ask | None) -> PartLook:
        due = write is not None and monotonic() - self._written_at.get(name, -WRITE_SECONDS) >= WRITE_SECONDS
        try:
            await self._run_in_time(name, write if write is not None and due else read)
        except Exception as error:  # Any error means that the service is not healthy.
            if due and status.not_tested(error):
                self._written_at[name], self._notes[name] = monotonic(), _WRITE_NOT_TESTED
                return PartLook(note=_WRITE_NOT_TESTED)
            self._written_at.pop(name, None)
            return PartLook(_FAULTS.get(name, _no_answer)(error))
        if due:
            self._written_at[name] = monotonic()
            self._notes.pop(name, None)
        return PartLook(note=self._notes.get(name, ""))

    async def _run_in_time(self, name: str, ask: Ask) -> None:
        """Runs a check with a timeout. Does not wait until the cancelled check has ended, which can take long.

        Raises: TimeoutError; the errors of the check.
        """
        if name in self._hanging:
            raise TimeoutError
        task = asyncio.create_task(ask())
        done, _ = await asyncio.wait({task}, timeout=LOOK_SECONDS)
        if done:
            await task
            return
        self._hanging[name] = task
        task.add_done_callback(lambda ended: self._forget_check(name, ended))
        task.cancel()
        raise TimeoutError

    def _forget_check(self, name: str, task: "asyncio.Task[None]") -> None:
        del self._hanging[name]
        if not task.cancelled():
            task.exception()  # The late error no longer matters.


def _no_answer(_error: BaseException) -> str:
    return _NO_ANSWER


_FAULTS: Mapping[str, Callable[[BaseException], str]] = {
    "postgres": write_probes.write_fault,
    "temporal": status.write_fault,
}


def _free_bytes(folder: Path) -> int:
    """Returns the free space of the folder's disk, or 0 if the folder cannot be read."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


REQUESTS = Histogram("perdure_http_request_seconds", "Request duration", ["method", "route", "status"])
TURNS_STARTED = Counter("perdure_turns_started", "Turns accepted or queued", ["agent"])
DECISIONS = Counter("perdure_decisions", "Decisions on approvals", ["decision"])
STREAMS = Gauge("perdure_streams", "Open event streams")
PERIMETER_EVENTS = Counter(
    "perdure_front_door", "Requests rejected before routing, and forwarding headers from unknown proxies", ["event"]
)
