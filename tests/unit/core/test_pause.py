"""When a paused turn looks by itself."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.approvals import PauseKind, RequestKind, RequestRef
from perdure.core.approvals.gates import LONGEST, MARGIN, deadlines_of, next_look, pause_kind

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("deadlines", "looks", "expected"),
    [
        ([], 0, None),
        ([timedelta(days=7)], 0, timedelta(days=7) + MARGIN),
        ([timedelta(days=7), timedelta(hours=1)], 3, timedelta(hours=1) + MARGIN),
        ([timedelta(seconds=-5)], 0, timedelta(seconds=1)),
        ([timedelta(seconds=-5)], 3, timedelta(seconds=8)),
        ([timedelta(days=-5)], 10_000, LONGEST),
    ],
)
def test_the_wait_is_to_the_first_deadline_and_grows_beyond_it(
    deadlines: list[timedelta], looks: int, expected: timedelta | None
) -> None:
    assert next_look(NOW, [NOW + each for each in deadlines], looks) == expected


@given(st.lists(st.timedeltas(timedelta(days=-30), timedelta(days=30)), min_size=1), st.integers(0, 10**6))
def test_a_wait_is_never_zero_and_never_spins(offsets: list[timedelta], looks: int) -> None:
    wait = next_look(NOW, [NOW + each for each in offsets], looks)
    assert wait is not None
    assert wait > timedelta(0)


def test_a_request_is_worth_a_look_when_its_record_last_said_so_else_at_its_expiry() -> None:
    soon, late = NOW + timedelta(hours=1), NOW + timedelta(days=7)
    opened = RequestRef(request_id="r1", call_id="t1.0", tool="pay", expires_at=soon)
    escalated = opened.model_copy(update={"look_at": late})
    effect = RequestRef(request_id="r2", call_id="t1.1", tool="post")
    assert deadlines_of([opened, effect]) == [soon]
    assert deadlines_of([escalated, effect]) == [late], "the old expiry rings for nothing any more"
    assert deadlines_of([effect]) == []


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([], PauseKind.APPROVAL),
        ([RequestKind.APPROVAL, RequestKind.EFFECT], PauseKind.APPROVAL),
        ([RequestKind.CHECKPOINT], PauseKind.APPROVAL),
        ([RequestKind.LIMIT], PauseKind.APPROVAL),
        ([RequestKind.CLARIFICATION], PauseKind.CLARIFICATION),
        ([RequestKind.CLIENT_RUN], PauseKind.CLIENT_RUN),
    ],
)
def test_a_pause_is_of_the_kind_of_what_it_waits_for(kinds: list[RequestKind], expected: PauseKind) -> None:
    waited = [RequestRef(request_id=kind.value, kind=kind, call_id="q1", tool="") for kind in kinds]
    assert pause_kind(waited) is expected
