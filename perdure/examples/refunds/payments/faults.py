"""Delays on demand, so that a caller can be killed at an exact moment: after its request came, before its answer goes.

Kept in memory: a restart forgets them.
"""

import threading
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class Point(StrEnum):
    """The moments at which a request can be held."""

    BEFORE_COMMIT = "before_commit"
    """The request is in, its effect is not made yet."""
    AFTER_COMMIT = "after_commit"
    """The effect is made and safe on disk, its answer is not sent yet."""


class Fault(BaseModel):
    """Hold the next `times` requests at `point`."""

    model_config = ConfigDict(extra="forbid")

    point: Point
    delay_seconds: float = Field(gt=0, le=120)
    times: int = Field(default=1, ge=1, le=10_000)
    kind: str | None = Field(default=None, pattern="^(refund|note)$")
    """Only requests for this kind of effect; None: both."""


class Faults:
    """The delays that are still to come."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._cleared = threading.Event()

    def add(self, fault: Fault) -> None:
        """Arm one more."""
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        """Clears all faults and releases the requests that are held."""
        with self._lock:
            self._faults.clear()
            self._cleared.set()
            self._cleared = threading.Event()

    def armed(self) -> list[Fault]:
        """Returns the faults that are still armed."""
        with self._lock:
            return [fault.model_copy() for fault in self._faults]

    def hold(self, point: Point, kind: str) -> None:
        """Waits here if a fault requests it; each use counts as one of its times."""
        with self._lock:
            fault = next((each for each in self._faults if each.point is point and each.kind in (None, kind)), None)
            if fault is None:
                return
            fault.times -= 1
            if not fault.times:
                self._faults.remove(fault)
            cleared = self._cleared
        cleared.wait(fault.delay_seconds)
