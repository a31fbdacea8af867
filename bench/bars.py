"""The project's target figures: ratios to the hand-written stacks, and sizes of a turn."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from bench.run import Measured

Measure = Callable[[Measured], list[float]]


def _latency(measured: Measured) -> list[float]:
    return [batch.p50_ms for batch in measured.alone]


def _throughput(measured: Measured) -> list[float]:
    return [batch.turns_a_second for batch in measured.loaded]


def _cpu(measured: Measured) -> list[float]:
    return [batch.cpu_ms for batch in measured.loaded]


def _frontend(measured: Measured) -> list[float]:
    return [batch.frontend for batch in measured.alone]


def _events(measured: Measured) -> list[float]:
    return [float(history.events) for history in measured.histories]


def _kib(measured: Measured) -> list[float]:
    return [history.size_bytes / 1024 for history in measured.histories]


@dataclass(frozen=True, slots=True)
class Bar:
    """One figure with its target."""

    title: str
    stack: str
    measure: Measure
    baseline: str | None = None
    """The stack to divide by, round by round; None for the figure itself, its largest."""
    maximum: float | None = None
    minimum: float | None = None

    def value(self, measured_by_stack: Mapping[str, Measured]) -> float:
        """Returns the figure."""
        values = self.measure(measured_by_stack[self.stack])
        if self.baseline is None:
            return max(values) if self.measure is not _frontend else statistics.median(values)
        baseline_values = self.measure(measured_by_stack[self.baseline])
        return statistics.median(
            value / baseline_value for value, baseline_value in zip(values, baseline_values, strict=True)
        )

    def holds(self, value: float) -> bool | None:
        """Returns whether the target is met; None if there is no target."""
        if self.maximum is None and self.minimum is None:
            return None
        return (self.maximum is None or value <= self.maximum) and (self.minimum is None or value >= self.minimum)

    @property
    def demand(self) -> str:
        """Returns the target in words."""
        if self.maximum is not None:
            return f", at most {self.maximum:g}"
        return f", at least {self.minimum:g}" if self.minimum is not None else ""


def _bars_against(
    stack: str, baseline: str, latency: float | None, throughput: float | None, cpu: float | None
) -> list[Bar]:
    return [
        Bar(f"{stack} : {baseline}, latency alone", stack, _latency, baseline, maximum=latency),
        Bar(f"{stack} : {baseline}, throughput", stack, _throughput, baseline, minimum=throughput),
        Bar(f"{stack} : {baseline}, CPU a turn", stack, _cpu, baseline, maximum=cpu),
    ]


BARS: Final = (
    *_bars_against("compact", "steps", 1.0, 1.1, 0.9),
    *_bars_against("compact", "tuned", 1.0, 1.1, 0.9),
    *_bars_against("compact", "merged", 1.2, 0.85, 1.2),
    *_bars_against("spread", "steps", None, None, None),
    *_bars_against("spread", "merged", None, None, None),
    *_bars_against("compact", "graph", None, None, None),
    Bar("compact: history events (38, and 41 if the two tools end separately)", "compact", _events, maximum=41),
    Bar("compact: history, KiB", "compact", _kib, maximum=64),
    Bar("compact: frontend requests a turn, alone, without heartbeats", "compact", _frontend, maximum=24),
)
