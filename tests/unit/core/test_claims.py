"""A claim lapses, and one person's claims in a row have an end."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.errors import CallerError
from perdure.core.approvals.decisions import BREAK_SECONDS, MOST_SECONDS, Claimed, claim_span

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def at(seconds: int) -> datetime:
    return NOW + timedelta(seconds=seconds)


def ann(since: int, until: int) -> Claimed:
    return Claimed("ann", "Ann", at(until), at(since))


@pytest.mark.parametrize(
    ("before", "user_id", "seconds", "expected"),
    [
        (None, "ann", 900, (0, 900)),
        (ann(-60, 840), "ann", 900, (-60, 900)),
        (ann(-3_000, 60), "ann", 900, (-3_000, 600)),
        (ann(-3_000, -10), "ann", 900, (-3_000, 600)),
        (ann(-3_599, 1), "ann", 3_600, (-3_599, 1)),
        (ann(-3_900, -300), "ann", 3_600, (0, 3_600)),
        (ann(-3_600, -1), "bob", 3_600, (0, 3_600)),
    ],
)
def test_claims_in_a_row_are_one_lease(
    before: Claimed | None, user_id: str, seconds: int, expected: tuple[int, int]
) -> None:
    assert claim_span(before, user_id, NOW, seconds) == (at(expected[0]), at(expected[1]))


@pytest.mark.parametrize("until", [0, -1, -299])
def test_a_lease_that_is_used_up_is_not_renewed_before_others_had_their_turn(until: int) -> None:
    with pytest.raises(CallerError) as refused:
        claim_span(ann(until - MOST_SECONDS, until), "ann", NOW, 60)
    assert (refused.value.code, refused.value.http) == ("claimed_too_long", 409)
    assert refused.value.details == {"again_at": at(until + BREAK_SECONDS)}


@given(st.lists(st.tuples(st.integers(0, 900), st.integers(1, MOST_SECONDS)), min_size=1, max_size=30))
def test_however_often_it_is_renewed_it_is_free_within_an_hour(tries: list[tuple[int, int]]) -> None:
    claim, now = None, NOW
    for wait, seconds in tries:
        now += timedelta(seconds=wait)
        try:
            since, until = claim_span(claim, "ann", now, seconds)
        except CallerError:
            assert claim is not None and not claim.stands(now)
            continue
        assert now < until <= since + timedelta(seconds=MOST_SECONDS)
        if claim is not None and since != claim.since:
            assert now - claim.until >= timedelta(seconds=BREAK_SECONDS), "a break in between"
        claim = Claimed("ann", "Ann", until, since)
