"""Faults of parts that still respond."""

from datetime import UTC, datetime, timedelta

import pytest

from perdure.contracts.turns import StuckTask
from perdure.core.status import (
    LATE_SECONDS,
    MIN_FAILURES,
    disk_fault,
    is_suspect,
    join_failures,
    must_end,
    next_attempt,
    queue_fault,
    relay_fault,
)

NOW = datetime(2026, 11, 21, 10, tzinfo=UTC)


def test_unserved_or_late_queues_an_idle_relay_and_a_full_disk_are_faults() -> None:
    served = [(1, 0, 0.0), (1, 500, LATE_SECONDS), (1, 0, 900.0)]
    assert not any(queue_fault(*each) for each in served)
    assert all(queue_fault(*each) for each in [(3, 1, 61.0), (0, 0, 0.0), (0, 9, 900.0)])
    assert not any(relay_fault(*each) for each in [(1, 0), (4, 0)])
    assert all(relay_fault(*each) for each in [(0, 0), (1, 2), (0, 2)])
    least = 128 << 20
    assert not any(disk_fault(*each) for each in [(200_000_000, least), (least, least), (0, 0)])
    assert all(disk_fault(*each) for each in [(least - 1, least), (0, least)])


def task(failures: int, seconds_ago: float = 60.0, **given: bool) -> StuckTask:
    return StuckTask(failures=failures, since=NOW - timedelta(seconds=seconds_ago), message="m", **given)


def test_only_a_turn_with_many_failures_or_a_known_one_is_looked_at() -> None:
    assert not any(is_suspect(attempt, None) for attempt in range(MIN_FAILURES + 1))
    assert is_suspect(MIN_FAILURES + 1, None) and is_suspect(0, task(9))


@pytest.mark.parametrize(("known", "seen", "joined"), [
    (None, None, None),
    (None, task(6), task(6)),
    (task(9), None, None),
    (task(9, 90), task(1, 5), task(9, 90)),
    (task(9, 90, given_up=True), task(11, 80), task(11, 90, given_up=True)),
])  # fmt: skip
def test_a_signal_starts_the_count_again_and_a_completed_task_ends_it(
    known: StuckTask | None, seen: StuckTask | None, joined: StuckTask | None
) -> None:
    assert join_failures(known, seen) == joined


def test_further_attempts_are_counted_without_the_history() -> None:
    assert next_attempt(12, task(9)) == task(11)
    assert next_attempt(MIN_FAILURES, task(9)) is next_attempt(12, None) is None


@pytest.mark.parametrize(("seconds_ago", "after", "without_worker", "ends"), [
    (900, 900, 0, True), (899, 900, 0, False), (9_000, 0, 0, False), (9_000, 900, LATE_SECONDS, False),
])  # fmt: skip
def test_a_stuck_turn_ends_after_its_time_unless_no_worker_tries_it(
    seconds_ago: float, after: float, without_worker: float, ends: bool
) -> None:
    assert must_end(task(20, seconds_ago), NOW, after, without_worker) is ends
