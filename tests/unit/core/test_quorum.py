"""The number of decisions that a request needs, and the users who can vote, directly or as delegates."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.errors import CallerError
from perdure.core.approvals import decisions
from perdure.core.approvals.decisions import (
    PENDING,
    Decision,
    Panel,
    Reviewer,
    Vote,
    assignment_fault,
    has_voted,
    is_taken,
)
from perdure.core.identity import OWN_CREDENTIAL, UNKNOWN_CREATOR, Credential, SignInMethod

A, E, R, S = Decision.APPROVE, Decision.EDIT, Decision.REJECT, Decision.RESPOND
ONE, TWO, LOST = Vote("ann", "ann", True), Vote("bob", "bob", True), Vote("carl", "carl", False)
MINE, EXTRA = Vote("dora", "dora", True), Vote("eve", "eve", True, is_named=False)
FAY = replace(EXTRA, user_id="fay", reviewer_id="fay")
UNCOUNTED = replace(EXTRA, counts=False)


@pytest.mark.parametrize(("expected", "cases"), [
    ("approved", [(A, 1, [], MINE), (A, 2, [ONE], MINE), (A, 3, [ONE, TWO, LOST], MINE)]),
    (PENDING, [(A, 2, [], MINE), (A, 2, [LOST], MINE), (A, 3, [ONE, LOST], MINE)]),
    ("rejected", [(R, 3, [], MINE), (R, 3, [EXTRA], EXTRA)]),
    ("responded", [(S, 3, [ONE], MINE)]),
    # Of those who are not named, one counts.
    ("approved", [(A, 1, [], EXTRA), (A, 2, [ONE], EXTRA), (A, 2, [EXTRA], MINE)]),
    ("approved", [(A, 3, [UNCOUNTED, ONE, TWO], EXTRA)]),
    (PENDING, [(A, 2, [EXTRA], FAY), (A, 3, [EXTRA, ONE], FAY), (A, 2, [UNCOUNTED], FAY), (E, 2, [EXTRA], EXTRA)]),
    ("edited", [(E, 1, [EXTRA], EXTRA)]),
])  # fmt: skip
def test_a_full_quorum_decides_a_request(expected: str, cases: list[tuple[Decision, int, list[Vote], Vote]]) -> None:
    assert {decisions.status_after(*case, revised=False) for case in cases} == {expected}


@given(st.sampled_from(Decision), st.integers(1, 20), st.lists(st.booleans(), max_size=19), st.booleans())
def test_too_few_votes_approve_nothing(decision: Decision, quorum: int, counting: list[bool], revised: bool) -> None:
    votes = [Vote(str(number), str(number), counts) for number, counts in enumerate(counting)]
    status = decisions.status_after(decision, quorum, votes, MINE, revised=revised)
    if decision in (R, S):
        assert status == decisions.STATUS_AFTER[decision]
    else:
        approving = 1 + (sum(counting) if decision is A else 0)
        assert (status != PENDING) is (approving >= quorum)
        assert status in (PENDING, "edited" if revised or decision is E else "approved")


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=9))
def test_named_reviewers_votes_count_and_at_most_one_other(given_votes: list[tuple[bool, bool]]) -> None:
    votes = [Vote(str(n), str(n), counts, named) for n, (counts, named) in enumerate(given_votes)]
    found = decisions.counted_votes(votes)
    assert [vote for vote in found if vote.is_named] == [vote for vote in votes if vote.is_named and vote.counts]
    others = [vote for vote in found if not vote.is_named]
    assert others == [vote for vote in votes if vote.counts and not vote.is_named][:1]


def test_a_user_and_a_delegator_count_once() -> None:
    votes = [Vote("bob", "ann", True)]
    assert has_voted(("bob",), votes) and not has_voted(("ann",), votes)
    assert is_taken("ann", votes) and not is_taken("bob", votes)


REVIEWER, ADMIN, NOTHING = frozenset({"reviewer"}), frozenset({"admin"}), frozenset[str]()
ANN, BOB = Reviewer("ann", "Ann", REVIEWER), Reviewer("bob", "Bob", REVIEWER)
CARL = Reviewer("carl", "Carl", NOTHING)
ROOT = Reviewer("root", "Root", ADMIN)
OPEN = Panel("asker", "reviewer")


def sits(panel: Panel, user_id: str, *seats: Reviewer, credential: Credential = OWN_CREDENTIAL) -> list[str] | str:
    """The owners of the seats, or the refusal's code."""
    try:
        return [seat.user_id for seat in decisions.represented_reviewers(panel, user_id, seats, credential)]
    except CallerError as refused:
        assert refused.http == 403
        return refused.code


NAMED, OF_CARL = replace(OPEN, reviewers=("Bob",)), replace(OPEN, assignee="carl")
OF_ANN, ANN_MAY = Panel("ann", "reviewer"), Panel("ann", "reviewer", True)


@pytest.mark.parametrize(("panel", "user_id", "seats", "expected"), [
    (OPEN, "ann", [ANN, BOB], ["ann", "bob"]),
    (OPEN, "bob", [ANN, BOB], ["bob", "ann"]),
    *((OPEN, "carl", seats, "role_required") for seats in ([], [CARL], [CARL, ANN], [ANN])),
    (OPEN, "root", [ROOT, ANN], "role_required"),
    *((Panel("asker", "admin"), "ann", seats, "role_required") for seats in ([ANN], [ANN, ROOT])),
    *((OF_ANN, "ann", seats, "own_request") for seats in ([ANN], [ANN, BOB])),
    (OF_ANN, "bob", [BOB, ANN], ["bob"]),
    (replace(OF_ANN, reviewers=("Ann",)), "bob", [BOB, ANN], "own_request"),
    (ANN_MAY, "ann", [ANN], ["ann"]),
    (Panel("carl", "reviewer"), "carl", [CARL, ANN], "role_required"),
    (replace(OPEN, assignee="bob", reviewers=("Carl",)), "ann", [ANN, BOB], ["bob"]),
    (NAMED, "ann", [ANN], "not_a_reviewer"),
    (NAMED, "ann", [ANN, BOB], ["bob"]),
    (replace(NAMED, assignee="ann"), "ann", [ANN], ["ann"]),
    *((panel, "carl", [CARL], "role_required") for panel in (replace(OPEN, reviewers=("Carl",)), OF_CARL)),
])  # fmt: skip
def test_a_user_votes_for_themselves_and_their_delegators(
    panel: Panel, user_id: str, seats: list[Reviewer], expected: list[str] | str
) -> None:
    assert sits(panel, user_id, *seats) == expected


BY_ASKER, BY_ROOT = Credential(SignInMethod.TOKEN, ("asker",)), Credential(SignInMethod.TOKEN, ("root",))
THROUGH_ROOT = Credential(SignInMethod.TOKEN, ("root", "asker"))
BY_UNKNOWN = Credential(SignInMethod.TOKEN, (UNKNOWN_CREATOR,))
ADMIN_ASKS = replace(OPEN, requester_is_admin=True)


@pytest.mark.parametrize(("panel", "credential", "seats", "expected"), [
    *((OPEN, by, [ANN], ["ann"]) for by in (BY_ROOT, BY_UNKNOWN)),
    *((OPEN, by, [ANN], "own_request") for by in (BY_ASKER, THROUGH_ROOT)),
    *((panel, BY_ASKER, [ANN, BOB], "own_request") for panel in (OPEN, NAMED)),
    (replace(OPEN, allow_self_approval=True), BY_ASKER, [ANN], ["ann"]),
    (ADMIN_ASKS, BY_UNKNOWN, [ANN], "own_request"),
    *((ADMIN_ASKS, by, [ANN], ["ann"]) for by in (BY_ROOT, Credential(SignInMethod.PASSWORD, (), ("asker",)))),
    (OPEN, OWN_CREDENTIAL, [ANN, replace(BOB, created_with=BY_ASKER)], ["ann"]),
    (OPEN, OWN_CREDENTIAL, [ANN, replace(BOB, created_with=BY_ROOT)], ["ann", "bob"]),
    (NAMED, OWN_CREDENTIAL, [ANN, replace(BOB, created_with=THROUGH_ROOT)], "own_request"),
    (replace(ADMIN_ASKS, reviewers=("Bob",)), OWN_CREDENTIAL, [ANN, replace(BOB, created_with=BY_UNKNOWN)],
        "own_request"),
])  # fmt: skip
def test_a_requesters_credential_cannot_vote(
    panel: Panel, credential: Credential, seats: list[Reviewer], expected: list[str] | str
) -> None:
    assert sits(panel, "ann", *seats, credential=credential) == expected


@given(
    st.sampled_from(["ann", "bob", "asker"]),
    st.booleans(),
    st.lists(st.sampled_from(["ann", "bob", "root", "asker", UNKNOWN_CREATOR]), unique=True),
    st.lists(st.sampled_from(["ann", "bob", "root", "asker"]), unique=True),
)
def test_no_credential_that_its_requester_could_hold_decides(
    user_id: str, is_admin: bool, created_by: list[str], handed_by: list[str]
) -> None:
    """However long the chain of credentials is by which the requester came to this one."""
    credential = Credential(SignInMethod.TOKEN, tuple(created_by))
    for actor in handed_by:
        credential = Credential(SignInMethod.TOKEN, credential.handed_on(actor))
    found = sits(replace(OPEN, requester_is_admin=is_admin), user_id, ANN, BOB, credential=credential)
    could_hold = "asker" in (user_id, *created_by, *handed_by) or (is_admin and UNKNOWN_CREATOR in created_by)
    assert isinstance(found, str) if could_hold or user_id == "asker" else user_id in found


def test_a_request_can_be_assigned_only_to_a_possible_reviewer() -> None:
    assert [assignment_fault(panel, ANN) for panel in (OPEN, ANN_MAY, NAMED)] == [None] * 3
    assert assignment_fault(OPEN, CARL) and assignment_fault(OF_ANN, ANN)


TOM, TIM = (Reviewer(name, name.title(), frozenset({"requester"})) for name in ("tom", "tim"))


@pytest.mark.parametrize(("owner", "to", "expected"), [
    (ANN, BOB, REVIEWER),
    (Reviewer("eve", "Eve", REVIEWER | ADMIN), BOB, REVIEWER),
    *((ANN, to, "cannot_decide") for to in (CARL, TOM, ROOT)),
    *((owner, to, "nothing_to_delegate") for owner, to in ((CARL, BOB), (TOM, TIM))),
])  # fmt: skip
def test_delegation_goes_to_an_allowed_user(owner: Reviewer, to: Reviewer, expected: frozenset[str] | str) -> None:
    try:
        assert decisions.delegated_roles(owner, to) == expected
    except CallerError as refused:
        assert (refused.code, refused.http) == (expected, 422)


NAMES = ("ann", "bob", "carl")
PEOPLE = [Reviewer(name, name.title(), roles) for name, roles in product(NAMES, (REVIEWER, ADMIN, NOTHING))]


@given(
    st.sampled_from(["ann", "bob", "carl", "asker"]),
    st.sampled_from(["reviewer", "admin"]),
    st.sets(st.sampled_from(["Ann", "Bob", "Carl"])),
    st.sampled_from(["", "ann", "bob"]),
    st.sampled_from(["ann", "bob", "carl"]),
    st.lists(st.sampled_from(PEOPLE), unique_by=lambda seat: seat.user_id),
)
def test_no_user_decides_for_the_requester_or_without_the_role(
    asker: str, role: str, named: set[str], assignee: str, user_id: str, seats: list[Reviewer]
) -> None:
    panel = Panel(asker, role, False, tuple(sorted(named)), assignee)
    found = sits(panel, user_id, *seats)
    has_role = any(seat.user_id == user_id and role in seat.roles for seat in seats)
    entitled = [seat for seat in seats if decisions.is_entitled(panel, seat)]
    good = [seat for seat in entitled if has_role and asker not in (seat.user_id, user_id)]
    if isinstance(found, str):
        assert not good
    else:
        assert sorted(found) == sorted(seat.user_id for seat in good)
        assert asker not in (*found, user_id)
        assert user_id not in found or found[0] == user_id, "the own seat comes first"
