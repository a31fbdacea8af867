"""The project's target figures: ratios to the hand-written stacks, and sizes of a turn."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from bench.run import Measured

Of = Callable[[Measured], list[float]]


def _latency(each: Measured) -> list[float]:
    return [batch.p50_ms for batch in each.alone]


def _throughput(each: Measured) -> list[float]:
    return [batch.turns_a_second for batch in each.loaded]


def _cpu(each: Measured) -> list[float]:
    return [batch.cpu_ms for batch in each.loaded]


def _frontend(each: Measured) -> list[float]:
    return [batch.frontend for batch in each.alone]


def _events(each: Measured) -> list[float]:
    return [float(history.events) for history in each.histories]


def _kib(each: Measured) -> list[float]:
    return [history.size_bytes / 1024 for history in each.histories]


@dataclass(frozen=True, slots=True)
class Bar:
    """One figure with its target."""

    title: str
    of: str
    measure: Of
    against: str | None = None
    """The stack to divide by, round by round; None for the figure itself, its largest."""
    most: float | None = None
    least: float | None = None

    def value(self, found: Mapping[str, Measured]) -> float:
        """Returns the figure."""
        own = self.measure(found[self.of])
        if self.against is None:
            return max(own) if self.measure is not _frontend else statistics.median(own)
        other = self.measure(found[self.against])
        return statistics.median(mine / theirs for mine, theirs in zip(own, other, strict=True))

    def holds(self, value: float) -> bool | None:
        """Returns whether the target is met; None if there is no target."""
        if self.most is None and self.least is None:
            return None
        return (self.most is None or value <= self.most) and (self.least is None or value >= self.least)

    @property
    def demand(self) -> str:
        """Returns the target in words."""
        if self.most is not None:
            return f", at most {self.most:g}"
        return f", at least {self.least:g}" if self.least is not None else ""


def _against(of: str, other: str, latency: float | None, throughput: float | None, cpu: float | None) -> list[Bar]:
    return [
        Bar(f"{of} : {other}, latency alone", of, _latency, other, most=latency),
        Bar(f"{of} : {other}, throughput", of, _throughput, other, least=throughput),
        Bar(f"{of} : {other}, CPU a turn", of, _cpu, other, most=cpu),
    ]


BARS: Final = (
    *_against("compact", "steps", 1.0, 1.1, 0.9),
    *_against("compact", "tuned", 1.0, 1.1, 0.9),
    *_against("compact", "merged", 1.2, 0.85, 1.2),
    *_against("spread", "steps", None, None, None),
    *_against("spread", "merged", None, None, None),
    *_against("compact", "graph", None, None, None),
    Bar("compact: history events (38, and 41 if the two tools end separately)", "compact", _events, most=41),
    Bar("compact: history, KiB", "compact", _kib, most=64),
    Bar("compact: frontend requests a turn, alone, without heartbeats", "compact", _frontend, most=24),
)
