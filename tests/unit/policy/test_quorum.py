"""One rejects for all, several approve together, an edit begins anew."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.decision import STATUS_OF, Decision
from policy.quorum import PENDING, status_after
from policy.votes import Vote, has_voted, is_taken

A, E, R, S = Decision.APPROVE, Decision.EDIT, Decision.REJECT, Decision.RESPOND
ONE, TWO, LOST = Vote("ann", "ann", True), Vote("bob", "bob", True), Vote("carl", "carl", False)


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
    assert status_after(decision, quorum, votes, revised=revised) == expected


@given(st.sampled_from(Decision), st.integers(1, 20), st.lists(st.booleans(), max_size=19), st.booleans())
def test_nothing_is_approved_by_fewer_than_the_policy_says(
    decision: Decision, quorum: int, counting: list[bool], revised: bool
) -> None:
    votes = [Vote(str(number), str(number), counts) for number, counts in enumerate(counting)]
    status = status_after(decision, quorum, votes, revised=revised)
    if decision in (R, S):
        assert status == STATUS_OF[decision]
    else:
        approving = 1 + (sum(counting) if decision is A else 0)
        assert (status != PENDING) is (approving >= quorum)
        assert status in (PENDING, "edited" if revised or decision is E else "approved")


def test_a_person_and_a_seat_count_once() -> None:
    votes = [Vote("bob", "ann", True)]
    assert has_voted("bob", votes) and not has_voted("ann", votes)
    assert is_taken("ann", votes) and not is_taken("bob", votes)
