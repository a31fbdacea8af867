"""When a start has failed and when a part hangs, by what was seen and when."""

import re

import pytest

from perdure.local.data_dir import StackError
from perdure.local.processes import Listening, SlowStart, StartClock

Look = tuple[float, float, int]
"""When, the processor seconds and the lines so far."""


@pytest.mark.parametrize(
    ("looks", "failure"),
    [
        ([(5, 0.0, 0), (9, 0.0, 0)], ""),
        ([(5, 0.0, 0), (10, 0.0, 0)], "was not ready after 10 s and made no progress for 10 s"),
        ([(5, 0.06, 0), (14, 0.06, 0)], ""),
        ([(5, 0.06, 0), (15, 0.06, 0)], "was not ready after 15 s and made no progress for 10 s"),
        ([(5, 0.04, 0), (10, 0.08, 0)], "was not ready after 10 s and made no progress for 10 s"),
        ([(5, 0.0, 1), (14, 0.0, 1)], ""),
        ([(5, 3.0, 0), (10, 1.0, 0), (19, 1.0, 0)], ""),
        ([(at, float(at), at) for at in range(1, 40)], ""),
        ([(at, float(at), at) for at in range(1, 41)], "was still not ready after 40 s, 4 times PERDURE_START_SECONDS"),
    ],
    ids=[
        "not long enough",
        "nothing at all",
        "worked once",
        "worked once, too long ago",
        "what a loop that waits uses",
        "a line",
        "another process",
        "always at work",
        "at work for ever",
    ],
)
def test_a_start_fails_when_it_makes_no_progress_or_never_ends(looks: list[Look], failure: str) -> None:
    start = SlowStart(10, 0.0)
    for now, cpu, lines in looks:
        start.look(now, cpu, lines)
    assert start.failure(looks[-1][0]) == failure


def test_time_in_which_a_part_waits_for_others_is_not_its_own() -> None:
    start = SlowStart(10, 0.0)
    for now in range(1, 100):
        start.hold(float(now))
        assert start.failure(now) == "" and start.word(now) == ""
    start.look(109.0, 0.0, 0)
    assert start.failure(109.0) != ""


def test_a_slow_start_is_told_of_now_and_then() -> None:
    start, told = SlowStart(180, 0.0), []
    for now in range(100):
        start.look(float(now), 0.0, 0)
        if word := start.word(float(now)):
            told.append((now, re.findall(r"\d+", word)))
    assert told == [(20, ["20"]), (50, ["50", "50"]), (80, ["80", "80"])]


@pytest.mark.parametrize(
    ("looks", "hangs"),
    [
        ([(2, True), (4, False), (20, False)], False),
        ([(at, at < 4) for at in range(0, 22, 2)], False),
        ([(at, at < 4) for at in range(0, 24, 2)], True),
        ([(at, at == 10) for at in range(0, 30, 2)], False),
        ([(2, True), (4, False), (100, False), (102, False)], False),
        ([(2, True), (100, False), *((at, False) for at in range(102, 122, 2))], True),
    ],
    ids=["silent", "almost", "too long", "once", "the supervisor did not run", "silent ever since"],
)
def test_a_part_hangs_when_somebody_listened_all_the_time(looks: list[tuple[float, bool]], hangs: bool) -> None:
    heard = Listening(20, 0.0)
    assert [heard.hangs(answered, now) for now, answered in looks][-1] is hangs


def test_nobody_hangs_where_the_setting_is_zero() -> None:
    heard = Listening(0, 0.0)
    assert not any(heard.hangs(False, float(now)) for now in range(1000))


def test_the_settings_are_seconds() -> None:
    assert StartClock.from_environ({}) == StartClock(180, 20)
    given = {"PERDURE_START_SECONDS": "600", "PERDURE_HANG_SECONDS": "0"}
    assert StartClock.from_environ(given) == StartClock(600, 0)
    for name, value in (("PERDURE_START_SECONDS", "0"), ("PERDURE_HANG_SECONDS", "soon")):
        with pytest.raises(StackError, match=f"{name}.*'{value}'"):
            StartClock.from_environ({name: value})
