"""Faults of parts that still respond."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.contracts.turns import StuckTask
from perdure.core import status

NOW = datetime(2026, 11, 21, 10, tzinfo=UTC)
PROBED = {"probed_at": NOW, "probed_event": 7, "failed_event": 9}


def test_unserved_or_late_queues_an_idle_relay_and_a_full_disk_are_faults() -> None:
    served = [(1, 0, 0.0), (1, 500, status.LATE_SECONDS), (1, 0, 900.0)]
    assert not any(status.queue_fault(*each) for each in served)
    assert all(status.queue_fault(*each) for each in [(3, 1, 61.0), (0, 0, 0.0), (0, 9, 900.0)])
    assert not any(status.relay_fault(*each) for each in [(1, 0), (4, 0)])
    assert all(status.relay_fault(*each) for each in [(0, 0), (1, 2), (0, 2)])
    least = 128 << 20
    assert not any(status.disk_fault(*each) for each in [(200_000_000, least), (least, least), (0, 0)])
    assert all(status.disk_fault(*each) for each in [(least - 1, least), (0, least)])


def task(failures: int, seconds_ago: float = 60.0, **given: Any) -> StuckTask:
    return StuckTask(failures=failures, since=NOW - timedelta(seconds=seconds_ago), message="m", **given)


def probed(seconds_ago: float, failed_event: int = 7) -> dict[str, Any]:
    return {"probed_at": NOW - timedelta(seconds=seconds_ago), "probed_event": 7, "failed_event": failed_event}


def test_only_a_turn_with_many_failures_or_a_known_one_is_looked_at() -> None:
    assert not any(status.is_suspect(attempt, None) for attempt in range(status.MIN_FAILURES + 1))
    assert status.is_suspect(status.MIN_FAILURES + 1, None) and status.is_suspect(0, task(9))


@pytest.mark.parametrize(("known", "seen", "joined"), [
    (None, None, None), (None, task(6), task(6)), (task(9), None, None),
    (task(9, 90), task(1, 5), task(9, 90)), (task(9, 90, given_up=True), task(11, 80), task(11, 90, given_up=True)),
    (task(9, 90, probed_at=NOW, probed_event=7), task(2, failed_event=9), task(9, 90, **PROBED)),
    (task(9, 900, completed_event=4), task(1, 5, completed_event=8), task(1, 5, completed_event=8)),
    (task(9, 900, run_id="a", given_up=True), task(1, 5, run_id="b"), task(1, 5, run_id="b")),
])  # fmt: skip
def test_a_signal_starts_the_count_again_and_a_completed_task_ends_it(
    known: StuckTask | None, seen: StuckTask | None, joined: StuckTask | None
) -> None:
    assert status.join_failures(known, seen) == joined


@pytest.mark.parametrize(("seconds_ago", "after", "probe", "step"), [
    (449, 900, {}, status.StuckStep.WAIT), (450, 900, {}, status.StuckStep.PROBE),
    (899, 900, probed(440), status.StuckStep.WAIT), (899, 900, probed(440, failed_event=9), status.StuckStep.WAIT),
    (900, 900, probed(440, failed_event=9), status.StuckStep.PROBE), (990, 900, probed(90), status.StuckStep.WAIT),
    (90_000, 900, probed(89_000), status.StuckStep.WAIT),
    (990, 900, probed(90, failed_event=9), status.StuckStep.END), (90_000, 0, {}, status.StuckStep.WAIT),
])  # fmt: skip
def test_a_stuck_turn_ends_if_its_task_fails_again_after_a_signal(
    seconds_ago: float, after: float, probe: dict[str, Any], step: status.StuckStep
) -> None:
    assert status.stuck_step(task(20, seconds_ago, **probe), NOW, after) is step
