"""Which failures of an assembly tool are tried again, how often, and after how long (S1-28 to S1-30)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.calls.context_assembly import Fault, goes_again, is_retried, wait_seconds


@pytest.mark.parametrize(
    ("fault", "status", "retried"),
    [
        (Fault.TIMEOUT, 0, True),
        (Fault.CONNECT, 0, True),
        (Fault.READ_TIMEOUT, 0, True),
        (Fault.STATUS, 500, True),
        (Fault.STATUS, 503, True),
        (Fault.STATUS, 599, True),
        (Fault.STATUS, 499, False),
        (Fault.STATUS, 429, False),
        (Fault.STATUS, 404, False),
        (Fault.STATUS, 301, False),
        (Fault.REFUSED, 0, False),
        (Fault.UNCLASSIFIED, 0, False),
    ],
)
def test_the_table_of_faults(fault: Fault, status: int, retried: bool) -> None:
    assert is_retried(fault, status) is retried


@given(st.integers(0, 10))
def test_attempts_are_one_more_than_retries(max_retries: int) -> None:
    attempts = 1
    while goes_again(Fault.TIMEOUT, 0, failed=attempts, max_retries=max_retries):
        attempts += 1
    assert attempts == max_retries + 1
    assert not goes_again(Fault.REFUSED, 0, failed=1, max_retries=max_retries)


def test_each_wait_is_twice_the_one_before() -> None:
    assert [wait_seconds(0.5, failed) for failed in (1, 2, 3, 4)] == [0.5, 1.0, 2.0, 4.0]
