"""Figures that the stack must show, on real processes; each is printed with how busy others kept the machine."""

import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from perdure.examples.charts.tools import _design, _solver
from tests.acceptance.machine import LOADED, Others, quantile
from tests.acceptance.running import RunningStack, running
from tests.acceptance.turns import Turns
from tests.scale import sized

pytestmark = pytest.mark.soak

SAMPLES = sized(100, 50)
BATCH = 25
"""Turns that wait at once: one user may have 50 that have not ended."""
WARM_UP = 3
APPROVAL_TO_CALL_SECONDS = 0.15
"""Seconds since a reviewer sent the approval; it includes the API's time."""
HEALTHY_SECONDS = 30.0
"""The bar is 6 s on a warm machine; five times that is allowed where others keep it busy."""

Waits = list[tuple[float, float]]
"""The seconds from sending each approval, and from storing it, to the start of its call."""
P95_SECONDS = 0.2
"""Of a solved design, its process's start included; ten times as much where others load the machine."""


async def _approval_to_call(turns: Turns, orders: range) -> Waits:
    """The time that each waits. All turns wait first; then each is decided and ends, one after the other."""
    ids = await turns.begin_all([f"Refund order {order}" for order in orders])
    assert await turns.until(ids, "awaiting_approval") == []
    waits = []
    for turn_id in ids:
        sent = await turns.approve(turn_id)
        assert await turns.until([turn_id], "completed") == []
        events = {event.kind: event.at for event in await turns.events(turn_id)}
        began = events["tool.executing"]
        waits.append(((began - sent).total_seconds(), (began - events["tool.approved"]).total_seconds()))
    return waits


async def _hundred_approvals(turns: Turns, first_order: int) -> tuple[str, float, float]:
    """100 approvals: their summary, the p95 since they were sent, and the load of other processes meanwhile."""
    waits: Waits = []
    with Others() as others:
        for order in range(first_order, first_order + SAMPLES, BATCH):
            waits += await _approval_to_call(turns, range(order, order + BATCH))
    sent, decided = zip(*waits, strict=True)
    said = ", ".join(
        f"{name} p50 {quantile(each, 0.5) * 1000:.0f} ms, p95 {quantile(each, 0.95) * 1000:.0f} ms"
        for name, each in (("sent", sent), ("decided", decided))
    )
    return f"approval to call, {SAMPLES}: {said}, others {others.share:.0%}", quantile(sent, 0.95), others.share


@pytest.mark.timed
@pytest.mark.timeout(300)
async def test_an_approved_call_starts_within_150_ms_of_its_approval(stack: RunningStack) -> None:
    async with Turns(stack, "refunds") as turns:
        await _approval_to_call(turns, range(70_000, 70_000 + WARM_UP))
        for first_order in (71_000, 72_000):
            said, p95, share = await _hundred_approvals(turns, first_order)
            print(f"\n{said} of the machine")
            if p95 < APPROVAL_TO_CALL_SECONDS or share < LOADED:
                break  # else others may be to blame: all hundred once more, and only they count
    assert p95 < APPROVAL_TO_CALL_SECONDS, said


async def _start_times(home: Path) -> tuple[float, float, float]:
    """Seconds from the command to all parts healthy and to the first answer, and others' share meanwhile."""
    began = time.monotonic()
    with Others() as others, running(home, "--examples") as stack:
        healthy = time.monotonic() - began
        async with Turns(stack, "refunds") as turns:
            turn_id = await turns.begin("/echo the first answer")
            assert await turns.until([turn_id], "completed") == []
            answered = time.monotonic() - began
            assert (await turns.read(turn_id))["answer"] == "the first answer"
    return healthy, answered, others.share


@pytest.mark.timed
@pytest.mark.timeout(240)
async def test_a_new_folder_answers_within_a_minute_and_a_used_one_sooner(tmp_path: Path) -> None:
    for folder in ("fresh", "used before"):
        healthy, answered, share = await _start_times(tmp_path / "home")
        summary = f"start, folder {folder}: healthy {healthy:.1f} s, first answer {answered:.1f} s, others {share:.0%}"
        print(f"\n{summary} of the machine")
        assert healthy < HEALTHY_SECONDS and answered < 60.0, summary


async def test_a_design_of_twelve_columns_is_found_in_200_milliseconds() -> None:
    kinds = ("quantitative", "temporal", "nominal", "boolean")
    columns: list[dict[str, Any]] = [
        {"name": f"column {n}", "kind": kinds[n % 4], "distinct": 3 + 7 * n} for n in range(12)
    ]
    for column in columns[::4]:
        column |= {"least": 1.0, "most": 9e3}
    took = []
    with Others() as others:
        for shown in range(40):
            shows = [{"column": columns[(shown + n) % 12]["name"], "on": ""} for n in range(shown % 4)]
            specification = {"title": "", "concept": "", "intent": "", "shows": shows}
            began = time.perf_counter()
            solved = await _solver.solve(_design.program_of(specification, columns))
            took.append(time.perf_counter() - began)
            assert solved.outcome in ("solved", "unsatisfiable")
    p95 = statistics.quantiles(took, n=20)[-1]
    line = f"12 columns: p50 {statistics.median(took) * 1e3:.0f} ms, p95 {p95 * 1e3:.0f} ms; others {others.share:.0%}"
    print(line)
    assert p95 < (P95_SECONDS if others.share < LOADED else 10 * P95_SECONDS), line
