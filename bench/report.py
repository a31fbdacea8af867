"""Writes the table, the ratios and their meaning to bench/results/ as Markdown and as JSON."""

import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from bench.bars import BARS, Bar
from bench.measure import IN_FLIGHT, Batch
from bench.run import Measured, Plan

RESULTS: Final = Path(__file__).parent / "results"
_PACKAGES: Final = ("temporalio", "langgraph", "langgraph-checkpoint-postgres", "asyncpg")


def write_results(plan: Plan, measured: Sequence[Measured]) -> str:
    """Writes both files and returns the Markdown."""
    now = datetime.now(UTC)
    text = "\n".join(_lines(plan, measured, now)) + "\n"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "latest.md").write_text(text)
    values = {"at": now.isoformat(), "machine": _machine(), "stacks": [_values(each) for each in measured]}
    (RESULTS / f"{now:%Y-%m-%dT%H%M%S}.json").write_text(json.dumps(values, indent=1) + "\n")
    return text


def _lines(plan: Plan, measured: Sequence[Measured], now: datetime) -> list[str]:
    others = statistics.mean(batch.others_cpu_share for each in measured for batch in (*each.alone, *each.loaded))
    return [
        f"# The reference turn, {now:%Y-%m-%d %H:%M} UTC",
        "",
        f"{_machine()}. {plan.rounds} rounds of all stacks. Each round has {plan.alone} turns alone and "
        f"{plan.loaded} turns with {IN_FLIGHT} in flight. Other programs used {others:.0%} of the machine. "
        "Trust the ratios; a difference below 10% is noise. All stacks do the same product writes on the same servers. "
        "`steps` keeps the defaults of the SDK and the driver: sandbox, gRPC compression, pollers, plans. `tuned` is "
        "the same with Perdure's settings. `merged` also has Perdure's merging and routing, but no other part of it.",
        "",
        *_table(measured),
        "",
        *_cpu_table(measured),
        "",
        "## Ratios, and the bars",
        "",
        "Each is the median over the rounds of the ratio within a round.",
        "",
        *_bars(measured),
        "",
        *_advice(measured),
    ]


def _table(measured: Sequence[Measured]) -> list[str]:
    heads = ("stack", "alone p50 ms", "p95", "turns/s", "CPU ms a turn", *_HISTORY_HEADS)
    rows = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for each in measured:
        latencies = sorted(latency for batch in each.alone for latency in batch.latencies_ms)
        p95 = latencies[int(len(latencies) * 0.95)]
        cells = [
            each.stack.title,
            f"{statistics.median(latencies):.0f}",
            f"{p95:.0f}",
            f"{_median(each.loaded, lambda batch: batch.turns_a_second):.1f}",
            f"{_median(each.loaded, lambda batch: batch.cpu_ms):.1f}",
            *_history_cells(each),
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


_HISTORY_HEADS: Final = ("events", "history KiB", "frontend requests", "model input KiB")


def _history_cells(each: Measured) -> list[str]:
    if not each.histories:
        return ["-"] * len(_HISTORY_HEADS)
    events = sorted(history.events for history in each.histories)
    inputs = max(size for history in each.histories for size in history.model_input_bytes)
    return [
        f"{events[0]}-{events[-1]}" if events[0] != events[-1] else str(events[0]),
        f"{max(history.size_bytes for history in each.histories) / 1024:.1f}",
        f"{_median(each.alone, lambda batch: batch.frontend):.1f}",
        f"{inputs / 1024:.1f}",
    ]


def _cpu_table(measured: Sequence[Measured]) -> list[str]:
    parts = ["workers", "postgres", "temporal", "valkey", "client"]
    rows = [f"CPU ms a turn at {IN_FLIGHT} in flight | " + " | ".join(parts), "|---" * (len(parts) + 1) + "|"]
    rows[0] = f"| {rows[0]} |"
    for each in measured:
        cells = [
            f"{_median(each.loaded, lambda batch, part=part: batch.cpu_ms_a_turn[part]):.1f}"  # type: ignore[misc]
            if part in each.loaded[0].cpu_ms_a_turn
            else "-"
            for part in parts
        ]
        rows.append("| " + " | ".join([each.stack.title, *cells]) + " |")
    return rows


def _bars(measured: Sequence[Measured]) -> list[str]:
    found = {each.stack.name: each for each in measured}
    lines = []
    for bar in BARS:
        if bar.stack in found and (bar.baseline is None or bar.baseline in found):
            lines.append(_bar_line(bar, bar.value(found)))
    return lines


def _bar_line(bar: Bar, value: float) -> str:
    verdict = "" if bar.holds(value) is None else (" (holds)" if bar.holds(value) else " (MISSED)")
    return f"- {bar.title}: {value:.2f}{bar.demand}{verdict}"


def _advice(measured: Sequence[Measured]) -> list[str]:
    found = {each.stack.name: each for each in measured}
    if not {"compact", "spread"} <= found.keys():
        return []
    compact, spread = found["compact"], found["spread"]
    slower = _median(spread.alone, lambda b: b.p50_ms) / _median(compact.alone, lambda b: b.p50_ms)
    dearer = _median(spread.loaded, lambda b: b.cpu_ms) / _median(compact.loaded, lambda b: b.cpu_ms)
    return [
        "## Which routing",
        "",
        "Use `compact` unless one kind of work must be scaled, limited or deployed separately. Here, a turn with "
        f"`spread` takes {slower:.2f} times the latency and {dearer:.2f} times the CPU. In return, slow tools never "
        "take a slot from approvals, and the workers of each queue have their own number, place and credentials.",
    ]


def _median(batches: Sequence[Batch], of: Callable[[Batch], float]) -> float:
    return statistics.median(map(of, batches))


def _machine() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return f"{os.cpu_count()} processors, {platform.system()}, Python {platform.python_version()}, {packages}"


def _values(each: Measured) -> Mapping[str, Any]:
    return {
        "name": each.stack.name,
        "title": each.stack.title,
        "alone": [_batch_values(batch) for batch in each.alone],
        "loaded": [_batch_values(batch) for batch in each.loaded],
        "histories": [[h.events, h.size_bytes, *h.model_input_bytes] for h in each.histories],
    }


def _batch_values(batch: Batch) -> Mapping[str, Any]:
    return {
        "latencies_ms": [round(latency, 2) for latency in batch.latencies_ms],
        "turns_a_second": round(batch.turns_a_second, 2),
        "cpu_ms_a_turn": {part: round(value, 2) for part, value in batch.cpu_ms_a_turn.items()},
        "frontend_a_turn": {operation: round(value, 2) for operation, value in batch.frontend_a_turn.items()},
        "others_cpu_share": round(batch.others_cpu_share, 3),
    }
