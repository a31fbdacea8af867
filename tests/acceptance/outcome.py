"""The result of one point of the kill matrix, and its display."""

from collections.abc import Sequence
from dataclasses import dataclass, field

TABLE_HEAD = """\
| killed while | turns | right | model requests in attempts | workers back s | p50 s | p95 s | max s |
|---|---|---|---|---|---|---|---|"""


def quantile(seconds: Sequence[float], share: float) -> float:
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


@dataclass(slots=True)
class Outcome:
    point: str
    turns: int
    requests: int = 0
    """The requests that the provider got."""
    attempts: int = 0
    killed_at: float = 0.0
    """The time of the wall clock."""
    back_seconds: float = 0.0
    """Seconds from the kill until new workers were ready: the times of the turns start there."""
    seconds: list[float] = field(default_factory=list)
    """Per turn that ended."""
    faults: list[str] = field(default_factory=list)
    """The broken promises, each with its turn before the colon."""

    def row(self) -> str:
        held = self.turns - len({fault.split(":")[0] for fault in self.faults})
        cells = [self.point, self.turns, held, f"{self.requests} in {self.attempts}"]
        times = [self.back_seconds, *(quantile(self.seconds, share) for share in (0.5, 0.95, 1.0))]
        return f"| {' | '.join(map(str, cells))} | {' | '.join(f'{seconds:.1f}' for seconds in times)} |"
