"""What counts as trouble of a part that still answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from perdure.core.delivery import LATE_SECONDS, disk_fault, queue_fault, relay_fault

COUNT = some.integers(0, 10_000)


@pytest.mark.parametrize(
    ("workers", "backlog", "oldest_seconds", "says"),
    [
        (1, 0, 0.0, ""),
        (1, 500, LATE_SECONDS, ""),
        (1, 0, 900.0, ""),
        (3, 1, 61.0, "waited 61 s"),
        (0, 0, 0.0, "no worker"),
        (0, 9, 900.0, "no worker"),
    ],
)
def test_a_queue_is_at_fault_unserved_or_late(workers: int, backlog: int, oldest_seconds: float, says: str) -> None:
    fault = queue_fault(workers, backlog, oldest_seconds)
    assert says in fault and bool(fault) is bool(says)


@pytest.mark.parametrize(
    ("sessions", "overdue", "says"),
    [(1, 0, ""), (4, 0, ""), (0, 0, "no relay"), (1, 2, "2 wake-ups"), (0, 2, "no relay")],
)
def test_a_relay_is_at_fault_that_is_away_or_delivers_nothing(sessions: int, overdue: int, says: str) -> None:
    fault = relay_fault(sessions, overdue)
    assert says in fault and bool(fault) is bool(says)


@pytest.mark.parametrize(
    ("free", "least", "says"),
    [
        (200_000_000, 128 << 20, ""),
        (128 << 20, 128 << 20, ""),
        ((128 << 20) - 1, 128 << 20, "134 MB are free"),
        (0, 128 << 20, "nearly full: 0 MB are free, 134 MB are needed"),
        (0, 0, ""),
    ],
)
def test_a_disk_is_at_fault_with_less_room_than_there_must_be(free: int, least: int, says: str) -> None:
    fault = disk_fault(free, least)
    assert says in fault and bool(fault) is bool(says)


@given(COUNT, COUNT, COUNT, some.floats(0, 1e6))
def test_more_of_what_is_wrong_never_mends_a_fault(workers: int, backlog: int, more: int, oldest: float) -> None:
    if queue_fault(workers, backlog, oldest):
        assert queue_fault(workers, backlog + more, oldest + more)
        assert queue_fault(0, backlog, oldest)
    if relay_fault(workers, backlog):
        assert relay_fault(workers, backlog + more)
