"""Measurements: how much of the machine others used meanwhile, and quantiles."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import psutil

LOADED = 0.15
"""Others' share of the machine from which a figure may be their doing."""


def _own_seconds() -> float:
    """CPU seconds of this process and all that it started, those that have ended included."""
    seconds = 0.0
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


@dataclass(slots=True)
class Others:
    """`with Others() as others:`; afterwards the block took `others.seconds`, and `others.share`, 0 to 1, of all cores
    went to processes not of ours."""

    seconds: float = 0.0
    share: float = 0.0
    _began: tuple[float, float, float] = field(default=(0.0, 0.0, 0.0), init=False)

    def __enter__(self) -> Self:
        self._began = self._now()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds, busy, own = (now - then for now, then in zip(self._now(), self._began, strict=True))
        self.share = max(0.0, busy - own) / (self.seconds * (psutil.cpu_count() or 1))

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s, others {self.share:.0%} of the machine"

    def _now(self) -> tuple[float, float, float]:
        """The clock, and the CPU seconds of all processes and of this one with all that it started."""
        now, times = time.monotonic(), psutil.cpu_times()
        return now, sum(times[:8]) - times.idle - getattr(times, "iowait", 0.0), _own_seconds()


def quantile(seconds: Sequence[float], share: float) -> float:
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")
