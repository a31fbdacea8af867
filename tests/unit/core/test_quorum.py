"""One rejects for all, several approve together, an edit begins anew."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.approvals.decisions import (
    PENDING,
    STATUS_OF,
    Decision,
    Vote,
    counted,
    has_voted,
    is_taken,
    status_after,
)

A, E, R, S = Decision.APPROVE, Decision.EDIT, Decision.REJECT, Decision.RESPOND
ONE, TWO, LOST = Vote("ann", "ann", True), Vote("bob", "bob", True), Vote("carl", "carl", False)
MINE, EXTRA = Vote("dora", "dora", True), Vote("eve", "eve", True, is_named=False)


@pytest.mark.parametrize(
    ("decision", "quorum", "votes", "revised", "expected"),
    [
        (A, 1, [], False, "approved"),
        (E, 1, [], True, "edited"),
        (A, 2, [], False, PENDING),
        (A, 2, [ONE], False, "approved"),
        (A, 2, [ONE], True, "edited"),
        (A, 2, [LOST], False, PENDING),
        (A, 3, [ONE, LOST], False, PENDING),
        (A, 3, [ONE, TWO, LOST], False, "approved"),
        (E, 2, [ONE], True, PENDING),
        (E, 3, [ONE, TWO], True, PENDING),
        (R, 3, [], False, "rejected"),
        (R, 3, [ONE, TWO], True, "rejected"),
        (S, 3, [ONE], False, "responded"),
    ],
)
def test_what_one_more_decision_makes_of_a_request(
    decision: Decision, quorum: int, votes: list[Vote], revised: bool, expected: str
) -> None:
    assert status_after(decision, quorum, votes, MINE, revised=revised) == expected


@given(st.sampled_from(Decision), st.integers(1, 20), st.lists(st.booleans(), max_size=19), st.booleans())
def test_nothing_is_approved_by_fewer_than_the_policy_says(
    decision: Decision, quorum: int, counting: list[bool], revised: bool
) -> None:
    votes = [Vote(str(number), str(number), counts) for number, counts in enumerate(counting)]
    status = status_after(decision, quorum, votes, MINE, revised=revised)
    if decision in (R, S):
        assert status == STATUS_OF[decision]
    else:
        approving = 1 + (sum(counting) if decision is A else 0)
        assert (status != PENDING) is (approving >= quorum)
        assert status in (PENDING, "edited" if revised or decision is E else "approved")


@pytest.mark.parametrize(
    ("decision", "quorum", "votes", "mine", "expected"),
    [
        (A, 1, [], EXTRA, "approved"),
        (A, 2, [ONE], EXTRA, "approved"),
        (A, 2, [EXTRA], MINE, "approved"),
        (A, 2, [EXTRA], replace(EXTRA, user_id="fay", seat_id="fay"), PENDING),
        (A, 3, [EXTRA, ONE], replace(EXTRA, user_id="fay", seat_id="fay"), PENDING),
        (A, 2, [replace(EXTRA, counts=False)], replace(EXTRA, user_id="fay", seat_id="fay"), PENDING),
        (A, 3, [replace(EXTRA, counts=False), ONE, TWO], EXTRA, "approved"),
        (E, 2, [EXTRA], EXTRA, PENDING),
        (E, 1, [EXTRA], EXTRA, "edited"),
        (R, 3, [EXTRA], EXTRA, "rejected"),
    ],
)
def test_of_those_who_are_not_named_one_counts(
    decision: Decision, quorum: int, votes: list[Vote], mine: Vote, expected: str
) -> None:
    assert status_after(decision, quorum, votes, mine, revised=False) == expected


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=9))
def test_what_is_counted_is_the_named_and_at_most_one_other(given_votes: list[tuple[bool, bool]]) -> None:
    votes = [Vote(str(n), str(n), counts, named) for n, (counts, named) in enumerate(given_votes)]
    found = counted(votes)
    assert [vote for vote in found if vote.is_named] == [vote for vote in votes if vote.is_named and vote.counts]
    others = [vote for vote in found if not vote.is_named]
    assert others == [vote for vote in votes if vote.counts and not vote.is_named][:1]


def test_a_person_and_a_seat_count_once() -> None:
    votes = [Vote("bob", "ann", True)]
    assert has_voted(("bob",), votes) and not has_voted(("ann",), votes)
    assert is_taken("ann", votes) and not is_taken("bob", votes)
