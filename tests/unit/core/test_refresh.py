"""A refresh token is used once; twice within the grace is a lost answer, twice after it a theft."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.identity import GRACE, Refresh, RefreshFacts, outcome

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
LATER, EARLIER = NOW + timedelta(days=1), NOW - timedelta(days=1)
AGO = st.timedeltas(timedelta(seconds=-30), timedelta(days=30))


@pytest.mark.parametrize(
    ("expires_at", "used_ago", "ended", "expected"),
    [
        (LATER, None, False, Refresh.ROTATE),
        (NOW, None, False, Refresh.OVER),
        (EARLIER, None, False, Refresh.OVER),
        (LATER, None, True, Refresh.OVER),
        (LATER, timedelta(0), False, Refresh.REPEAT),
        (LATER, timedelta(seconds=-1), False, Refresh.REPEAT),
        (LATER, GRACE, False, Refresh.REPEAT),
        (LATER, GRACE + timedelta(microseconds=1), False, Refresh.BETRAYED),
        (EARLIER, timedelta(hours=1), False, Refresh.BETRAYED),
        (LATER, timedelta(hours=1), True, Refresh.OVER),
    ],
)
def test_what_becomes_of_a_token(
    expires_at: datetime, used_ago: timedelta | None, ended: bool, expected: Refresh
) -> None:
    used_at = None if used_ago is None else NOW - used_ago
    assert outcome(RefreshFacts(NOW, expires_at, used_at, ended)) is expected


@given(AGO, st.none() | AGO, st.booleans())
def test_only_an_unused_token_of_an_open_session_has_a_new_successor(
    expired_ago: timedelta, used_ago: timedelta | None, ended: bool
) -> None:
    facts = RefreshFacts(NOW, NOW - expired_ago, None if used_ago is None else NOW - used_ago, ended)
    found = outcome(facts)
    assert (found is Refresh.ROTATE) is (not ended and used_ago is None and expired_ago < timedelta(0))
    if ended:
        assert found is Refresh.OVER
