"""How long a caller waits after wrong passwords."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.identity import ACCOUNT, ADDRESS, DEVICE, PLACE, Pace, Tally, wait_after, wait_left

PACES = (DEVICE, PLACE, ACCOUNT, ADDRESS)


@pytest.mark.parametrize(
    ("pace", "failures", "seconds"),
    [
        (PLACE, 0, 0),
        (PLACE, 4, 0),
        (PLACE, 5, 1),
        (PLACE, 6, 2),
        (PLACE, 10, 32),
        (PLACE, 14, 512),
        (PLACE, 15, 900),
        (PLACE, 10_000, 900),
        (DEVICE, 5, 1),
        (ACCOUNT, 19, 0),
        (ACCOUNT, 20, 1),
        (ACCOUNT, 26, 60),
        (ADDRESS, 49, 0),
        (ADDRESS, 10**9, 60),
    ],
)
def test_each_wrong_guess_doubles_the_wait_up_to_a_most(pace: Pace, failures: int, seconds: int) -> None:
    assert wait_after(pace, failures) == seconds


@pytest.mark.parametrize(
    ("counted", "now", "seconds"),
    [
        ([], 100.0, 0.0),
        ([(PLACE, Tally())], 100.0, 0.0),
        ([(PLACE, Tally(5, 100.0))], 100.0, 1.0),
        ([(PLACE, Tally(5, 100.0))], 100.25, 0.75),
        ([(PLACE, Tally(5, 100.0))], 101.0, 0.0),
        ([(PLACE, Tally(6, 100.0)), (ACCOUNT, Tally(25, 100.0))], 100.0, 32.0),
        ([(PLACE, Tally(7, 100.0)), (ACCOUNT, Tally(1, 100.0))], 101.0, 3.0),
        ([(PLACE, Tally(5, 500.0))], 100.0, 1.0),  # the clock was set back
    ],
)
def test_the_longest_wait_counts(counted: list[tuple[Pace, Tally]], now: float, seconds: float) -> None:
    assert wait_left(counted, now) == pytest.approx(seconds)


TALLIES = st.builds(Tally, st.integers(0, 100), st.floats(0, 1e6))


@given(st.lists(st.tuples(st.sampled_from(PACES), TALLIES), max_size=4), st.floats(0, 2e6))
def test_no_wait_is_negative_or_longer_than_its_pace_and_time_only_shortens_it(
    counted: list[tuple[Pace, Tally]], now: float
) -> None:
    wait = wait_left(counted, now)
    assert 0 <= wait <= max((pace.most_seconds for pace, _ in counted), default=0)
    assert wait_left(counted, now + 1) <= wait
    assert wait_left(counted, now + wait + 1_000_000) == 0


@given(st.sampled_from(PACES), st.integers(0, 200))
def test_one_more_wrong_guess_never_makes_the_wait_shorter(pace: Pace, failures: int) -> None:
    assert wait_after(pace, failures) <= wait_after(pace, failures + 1)
