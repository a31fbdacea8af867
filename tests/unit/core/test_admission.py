"""Whether a new turn starts, waits or is refused."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.turns import Admission, Caps, Load, OnBusy, admit, too_many

CAPS = Caps(queue_depth=2, turns_a_user=5)


@pytest.mark.parametrize(
    ("load", "on_busy", "expected"),
    [
        (Load(False, 0, 0), OnBusy.REJECT, Admission.START),
        (Load(False, 0, 0), OnBusy.QUEUE, Admission.START),
        (Load(True, 0, 1), OnBusy.REJECT, Admission.BUSY),
        (Load(True, 0, 1), OnBusy.QUEUE, Admission.QUEUE),
        (Load(True, 1, 2), OnBusy.QUEUE, Admission.QUEUE),
        (Load(True, 2, 3), OnBusy.QUEUE, Admission.QUEUE_FULL),
        (Load(False, 0, 4), OnBusy.REJECT, Admission.START),
        (Load(False, 0, 5), OnBusy.REJECT, Admission.TOO_MANY),
        (Load(True, 0, 5), OnBusy.REJECT, Admission.TOO_MANY),
        (Load(True, 0, 5), OnBusy.QUEUE, Admission.TOO_MANY),
        (Load(False, 0, 0), OnBusy.STEER, Admission.START),
        (Load(True, 0, 1), OnBusy.STEER, Admission.JOIN),
        (Load(True, 1, 1), OnBusy.STEER, Admission.JOIN),
        (Load(True, 2, 1), OnBusy.STEER, Admission.QUEUE_FULL),
        (Load(True, 0, 5), OnBusy.STEER, Admission.JOIN),  # it opens no turn
        (Load(False, 0, 5), OnBusy.STEER, Admission.TOO_MANY),
        (Load(True, 0, 1, stopping=True), OnBusy.STEER, Admission.QUEUE),
        (Load(True, 2, 3, stopping=True), OnBusy.STEER, Admission.QUEUE_FULL),
        (Load(True, 0, 5, stopping=True), OnBusy.STEER, Admission.TOO_MANY),
        (Load(False, 0, 0), OnBusy.REPLACE, Admission.START),
        (Load(False, 0, 5), OnBusy.REPLACE, Admission.TOO_MANY),
        (Load(True, 0, 1, gives_way=1), OnBusy.REPLACE, Admission.REPLACE),
        (Load(True, 2, 3, gives_way=1), OnBusy.REPLACE, Admission.REPLACE),  # the queue is as long as before
        (Load(True, 0, 5, gives_way=1), OnBusy.REPLACE, Admission.REPLACE),
        (Load(True, 0, 6, gives_way=1), OnBusy.REPLACE, Admission.TOO_MANY),
        (Load(True, 1, 6, stopping=True, gives_way=2), OnBusy.REPLACE, Admission.REPLACE),
        (Load(True, 0, 5, gives_way=1), OnBusy.QUEUE, Admission.TOO_MANY),
    ],
)
def test_a_new_turn_is_admitted_by_load_caps_and_wish(load: Load, on_busy: OnBusy, expected: Admission) -> None:
    assert admit(load, CAPS, on_busy) is expected


loads = st.builds(
    Load,
    st.booleans(),
    st.integers(0, 30),
    st.integers(0, 60),
    stopping=st.booleans(),
    gives_way=st.integers(0, 2),
)
caps = st.builds(Caps, st.integers(0, 25), st.integers(0, 55))


@given(loads, caps, st.sampled_from(OnBusy))
def test_no_turn_starts_beside_another_and_no_cap_is_passed(load: Load, cap: Caps, on_busy: OnBusy) -> None:
    admission = admit(load, cap, on_busy)
    if admission is Admission.START:
        assert not load.busy
    if admission is Admission.QUEUE:
        assert load.busy and load.queued < cap.queue_depth
        assert on_busy is OnBusy.QUEUE or (on_busy is OnBusy.STEER and load.stopping)
    if admission is Admission.JOIN:
        assert load.busy and on_busy is OnBusy.STEER and not load.stopping and load.queued < cap.queue_depth
    if admission is Admission.REPLACE:
        assert load.busy and on_busy is OnBusy.REPLACE and load.open_of_user - load.gives_way < cap.turns_a_user
    if admission in (Admission.START, Admission.QUEUE):
        assert load.open_of_user < cap.turns_a_user
    if admission is Admission.BUSY:
        assert load.busy and on_busy is OnBusy.REJECT


@given(loads, caps, st.sampled_from(OnBusy))
def test_less_load_never_refuses_what_more_load_admits(load: Load, cap: Caps, on_busy: OnBusy) -> None:
    before = admit(load, cap, on_busy)
    if before in (Admission.QUEUE, Admission.JOIN) and load.queued:
        assert admit(replace(load, queued=load.queued - 1), cap, on_busy) is before


@given(loads, caps)
def test_a_free_conversation_takes_every_way_alike(load: Load, cap: Caps) -> None:
    free = replace(load, busy=False, stopping=False, gives_way=0)
    assert len({admit(free, cap, on_busy) for on_busy in OnBusy}) == 1


@pytest.mark.parametrize(
    ("waiting", "wait_seconds", "advice"),
    [(5, 60, "have some decided on"), (4, 5, "wait for one"), (0, 5, "wait for one")],
)
def test_whoever_has_too_many_is_told_the_limit_its_variable_and_how_many_wait(
    waiting: int, wait_seconds: int, advice: str
) -> None:
    told = too_many(Load(False, 0, 5, waiting), CAPS)
    assert (told.code, told.http, told.details["retry_after_seconds"]) == ("too_many_turns", 429, wait_seconds)
    assert "the limit is 5 a user (PERDURE_LIVE_TURNS_PER_USER)" in told.message
    assert f"turns that wait for approval count too, and {waiting} of yours do" in told.message
    assert advice in told.message
