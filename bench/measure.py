"""One batch on one stack: turns one after the other, then 64 in parallel, with counts of CPU and frontend requests."""

import asyncio
import os
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.client import Begin, Client
from bench.processes import cpu_seconds, machine_cpu_seconds
from bench.server import PAGE_SECONDS, Frontend

IN_FLIGHT: Final = 64


@dataclass(frozen=True, slots=True)
class Batch:
    """The measurements; times are in milliseconds. `_a_turn` in a name means per turn."""

    latencies_ms: tuple[float, ...]
    seconds: float
    cpu_ms_a_turn: Mapping[str, float]
    """CPU time per turn in ms of each part: workers, postgres, temporal, valkey, client."""
    frontend_a_turn: Mapping[str, float]
    """Requests to Temporal's frontend by operation."""
    others_cpu_share: float
    """The share of the machine that was busy with other work."""
    turn_ids: tuple[str, ...] = field(repr=False)

    @property
    def turns_a_second(self) -> float:
        """Throughput."""
        return len(self.turn_ids) / self.seconds

    @property
    def p50_ms(self) -> float:
        """Median latency."""
        return statistics.median(self.latencies_ms)

    @property
    def cpu_ms(self) -> float:
        """The sum of all parts."""
        return sum(self.cpu_ms_a_turn.values())

    @property
    def frontend(self) -> float:
        """The sum of all operations."""
        return sum(self.frontend_a_turn.values())


@dataclass(frozen=True, slots=True)
class Bench:
    """A stack that is ready to be measured."""

    client: Client
    begin: Begin
    parts: Mapping[str, Sequence[int]]
    """Process ids by part; the client is this process itself."""
    frontend: Frontend | None

    async def alone(self, conversations: Sequence[str]) -> Batch:
        """Measures turns one after the other."""
        return await self._measure(conversations, 1)

    async def loaded(self, conversations: Sequence[str]) -> Batch:
        """Measures with 64 turns in progress."""
        return await self._measure(conversations, IN_FLIGHT)

    async def _measure(self, conversations: Sequence[str], in_flight: int) -> Batch:
        requests_before = await self._requests()
        cpu_before, machine_before, started_at = self._cpu(), machine_cpu_seconds(), time.perf_counter()
        turns_run = await self._run(conversations, in_flight)
        seconds = time.perf_counter() - started_at
        cpu_used = {part: now - cpu_before[part] for part, now in self._cpu().items()}
        busy = machine_cpu_seconds() - machine_before
        requests_after = await self._requests()
        turns = len(turns_run)
        return Batch(
            latencies_ms=tuple(latency * 1_000 for _, latency in turns_run),
            seconds=seconds,
            cpu_ms_a_turn={part: value * 1_000 / turns for part, value in cpu_used.items()},
            frontend_a_turn={
                operation: count / turns for operation, count in (requests_after - requests_before).items()
            },
            others_cpu_share=max(0.0, busy - sum(cpu_used.values())) / (seconds * _processors()),
            turn_ids=tuple(turn_id for turn_id, _ in turns_run),
        )

    async def _requests(self) -> Counter[str]:
        if self.frontend is None:
            await asyncio.sleep(PAGE_SECONDS)  # every stack begins after the same pause
            return Counter()
        return await self.frontend.requests()

    async def _run(self, conversations: Sequence[str], in_flight: int) -> list[tuple[str, float]]:
        remaining = iter(conversations)

        async def one_after_another() -> list[tuple[str, float]]:
            return [await self.client.turn(self.begin, conversation) for conversation in remaining]

        lanes = await asyncio.gather(*(one_after_another() for _ in range(in_flight)))
        return [turn for lane in lanes for turn in lane]

    def _cpu(self) -> dict[str, float]:
        used = {part: sum(map(cpu_seconds, pids)) for part, pids in self.parts.items()}
        return used | {"client": time.process_time()}


def _processors() -> int:
    return os.cpu_count() or 1
