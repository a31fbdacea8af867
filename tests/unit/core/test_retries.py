"""The numbers of every retry class."""

from datetime import timedelta

import pytest

from perdure.contracts.activities import RetryClass
from perdure.core.calls.retries import ATTEMPTS, NO_CAP, NUMBERS, next_delay


def test_every_retry_class_has_numbers() -> None:
    assert set(NUMBERS) == set(RetryClass)


@pytest.mark.parametrize(
    ("retry", "waits"),
    [
        (RetryClass.PROVIDER, [1, 2, 4]),
        (RetryClass.TOOL, [0.5, 1, 2, 4]),
        (RetryClass.UNTIL_BACK, [0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]),
    ],
)
def test_the_waits_grow_to_their_limit(retry: RetryClass, waits: list[float]) -> None:
    numbers = NUMBERS[retry]
    assert [numbers.wait_before(attempt).total_seconds() for attempt in range(2, len(waits) + 2)] == pytest.approx(
        waits
    )


def test_only_what_waits_for_postgres_tries_without_end() -> None:
    assert {retry: NUMBERS[retry].maximum_attempts for retry in RetryClass} == {
        RetryClass.PROVIDER: ATTEMPTS,
        RetryClass.TOOL: ATTEMPTS,
        RetryClass.UNTIL_BACK: NO_CAP,
    }


def test_a_wait_far_along_is_still_the_limit_and_no_overflow() -> None:
    assert NUMBERS[RetryClass.UNTIL_BACK].wait_before(100_000) == timedelta(seconds=5)


def test_the_first_retry_comes_within_a_second() -> None:
    assert all(numbers.initial_interval <= timedelta(seconds=1) for numbers in NUMBERS.values())


@pytest.mark.parametrize(
    ("asked", "delay"), [(None, None), (0.0, None), (0.25, 0.25), (59.0, 59.0), (61.0, 60.0), (1e300, 60.0)]
)
def test_a_wait_that_was_asked_for_is_the_next_delay_up_to_a_minute(asked: float | None, delay: float | None) -> None:
    assert next_delay(asked) == (None if delay is None else timedelta(seconds=delay))
