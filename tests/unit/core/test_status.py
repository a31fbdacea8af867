"""Faults of parts that still respond."""

from perdure.core.status import LATE_SECONDS, disk_fault, queue_fault, relay_fault


def test_unserved_or_late_queues_an_idle_relay_and_a_full_disk_are_faults() -> None:
    served = [(1, 0, 0.0), (1, 500, LATE_SECONDS), (1, 0, 900.0)]
    assert not any(queue_fault(*each) for each in served)
    assert all(queue_fault(*each) for each in [(3, 1, 61.0), (0, 0, 0.0), (0, 9, 900.0)])
    assert not any(relay_fault(*each) for each in [(1, 0), (4, 0)])
    assert all(relay_fault(*each) for each in [(0, 0), (1, 2), (0, 2)])
    least = 128 << 20
    assert not any(disk_fault(*each) for each in [(200_000_000, least), (least, least), (0, 0)])
    assert all(disk_fault(*each) for each in [(least - 1, least), (0, least)])
