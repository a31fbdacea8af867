"""Why a decision is refused, and in which order."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.errors import CallerError
from perdure.core.approvals.decisions import (
    STATUS_OF,
    Claimed,
    Decider,
    Decision,
    Facts,
    Seat,
    Vote,
    closed,
    refusal,
    seat_of,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)
PENDING = Facts("pending", "digest", NOW + timedelta(days=7), NOW, "asker", "reviewer", False, {})
REVIEWER = Decider("reviewer-1", frozenset({"reviewer"}))
FINE: dict[str, Any] = {"reasoned": False, "args_given": False, "text": False}


def code(
    facts: Facts, decider: Decider, decision: Decision, parts: dict[str, bool], digest: str = "digest"
) -> str | None:
    """The refusal's code."""
    found = refusal(facts, decider, decision, digest, **(FINE | parts))
    return found.code if found else None


A, E, R, S = Decision.APPROVE, Decision.EDIT, Decision.REJECT, Decision.RESPOND


@pytest.mark.parametrize(
    ("decision", "given_parts", "expected"),
    [
        (A, {}, None),
        (A, {"args_given": True}, "args_unexpected"),
        (E, {"args_given": True}, None),
        (E, {}, "args_required"),
        (R, {"reasoned": True}, None),
        (R, {}, "reason_required"),
        (R, {"reasoned": True, "args_given": True}, "args_unexpected"),
        (S, {"text": True}, None),
        (S, {"reasoned": True}, "comment_required"),
        (S, {"text": True, "args_given": True}, "args_unexpected"),
    ],
)
def test_each_decision_needs_its_own_parts(
    decision: Decision, given_parts: dict[str, bool], expected: str | None
) -> None:
    assert code(PENDING, REVIEWER, decision, given_parts) == expected


@pytest.mark.parametrize(
    ("facts", "decider", "expected"),
    [
        (PENDING, Decider("somebody", frozenset()), ("role_required", 403)),
        (PENDING, Decider("somebody", frozenset({"admin"})), ("role_required", 403)),
        (PENDING, Decider("asker", frozenset({"reviewer"})), ("own_request", 403)),
        (replace(PENDING, allow_self_approval=True), Decider("asker", frozenset({"reviewer"})), None),
        (replace(PENDING, status="approved"), REVIEWER, ("already_decided", 409)),
        (replace(PENDING, status="cancelled"), REVIEWER, ("already_decided", 409)),
        (replace(PENDING, status="reserved"), REVIEWER, ("already_decided", 409)),
        (replace(PENDING, status="outcome_unknown"), REVIEWER, ("already_decided", 409)),
        (replace(PENDING, status="expired"), REVIEWER, ("approval_expired", 410)),
        (replace(PENDING, expires_at=NOW), REVIEWER, ("approval_expired", 410)),
        (replace(PENDING, expires_at=NOW + timedelta(microseconds=1)), REVIEWER, None),
        # Decided in time stays decided, however late one asks.
        (replace(PENDING, status="approved", expires_at=NOW), REVIEWER, ("already_decided", 409)),
        (replace(PENDING, digest="another"), REVIEWER, ("digest_differs", 409)),
    ],
)
def test_the_record_and_the_decider_are_judged(
    facts: Facts, decider: Decider, expected: tuple[str, int] | None
) -> None:
    found = refusal(facts, decider, A, "digest", **FINE)
    assert ((found.code, found.http) if found else None) == expected


def test_a_second_decider_is_told_plainly_who_decided_what_and_when() -> None:
    first: dict[str, object] = {"type": "reject", "by": "ann", "at": "2026-02-28T23:59:01.16712+00:00"}
    found = refusal(replace(PENDING, status="rejected", decided_before=first), REVIEWER, A, "digest", **FINE)
    assert found is not None
    assert found.message == "too late: rejected by ann at 2026-02-28 23:59:01 UTC"
    assert found.details == {"status": "rejected", "decision": first}


def test_who_comes_after_the_deadline_or_a_stop_is_told_that_it_is_too_late() -> None:
    expired = refusal(replace(PENDING, expires_at=NOW), REVIEWER, A, "digest", **FINE)
    cancelled = refusal(replace(PENDING, status="cancelled"), REVIEWER, A, "digest", **FINE)
    assert expired is not None and cancelled is not None
    assert expired.message == "too late: it expired undecided at 2026-03-01 00:00:00 UTC and counts as denied"
    assert cancelled.message == "too late: it is cancelled"


ANN = Seat("ann", "Ann", frozenset({"reviewer"}))
STAND_IN = Decider("reviewer-1", frozenset({"reviewer"}), "One", (ANN,))
OWN, ANNS = Vote("somebody", "reviewer-1", True), Vote("somebody", "ann", True)


@pytest.mark.parametrize(
    ("facts", "decider", "expected"),
    [
        (replace(PENDING, claim=Claimed("ann", "Ann", NOW + timedelta(seconds=1), NOW)), REVIEWER, ("claimed", 409)),
        (replace(PENDING, claim=Claimed("ann", "Ann", NOW, NOW)), REVIEWER, None),
        (replace(PENDING, claim=Claimed("reviewer-1", "One", NOW + timedelta(hours=1), NOW)), REVIEWER, None),
        (replace(PENDING, votes=(Vote("reviewer-1", "reviewer-1", True),)), REVIEWER, ("already_voted", 409)),
        (replace(PENDING, votes=(Vote("reviewer-1", "ann", False),)), STAND_IN, ("already_voted", 409)),
        (replace(PENDING, votes=(OWN,)), REVIEWER, ("already_voted", 409)),
        (replace(PENDING, votes=(OWN,)), STAND_IN, None),
        (replace(PENDING, votes=(OWN, Vote("other", "ann", True))), STAND_IN, ("already_voted", 409)),
        (replace(PENDING, reviewers=("Ann",)), REVIEWER, ("not_a_reviewer", 403)),
        (replace(PENDING, reviewers=("Ann",)), STAND_IN, None),
        (replace(PENDING, reviewers=("Ann",), votes=(ANNS,)), STAND_IN, ("already_voted", 409)),
        (replace(PENDING, reviewers=("Ann",), assignee="reviewer-1"), REVIEWER, None),
        (replace(PENDING, requested_by="ann"), Decider("bob", frozenset(), "Bob", (ANN,)), ("role_required", 403)),
        (replace(PENDING, requested_by="ann", reviewers=("Ann",)), STAND_IN, ("own_request", 403)),
    ],
)
def test_votes_claims_seats_and_named_reviewers_are_judged(
    facts: Facts, decider: Decider, expected: tuple[str, int] | None
) -> None:
    found = refusal(facts, decider, A, "digest", **FINE)
    assert ((found.code, found.http) if found else None) == expected


def test_a_decision_is_taken_in_the_own_seat_and_where_that_is_taken_in_the_next() -> None:
    assert seat_of(PENDING, STAND_IN).user_id == "reviewer-1"
    assert seat_of(replace(PENDING, votes=(OWN,)), STAND_IN).user_id == "ann"
    assert seat_of(replace(PENDING, reviewers=("Ann",)), STAND_IN).user_id == "ann"


def test_of_a_decision_that_was_erased_it_is_told_that_there_was_one() -> None:
    found = closed(replace(PENDING, status="approved", decided_before={"type": "approve"}))
    assert found is not None and (found.code, found.message) == ("already_decided", "too late: it is approved")


def test_what_was_withdrawn_after_it_was_approved_is_not_called_approved() -> None:
    first: dict[str, object] = {"type": "approve", "by": "ann", "at": "2026-02-28T23:59:01+00:00"}
    found = closed(replace(PENDING, status="withdrawn", decided_before=first))
    assert found is not None and found.message == "too late: it is withdrawn"


ORDER = ["role_required", "own_request", "approval_expired", "already_decided"]
ORDER += ["already_voted", "claimed", "digest_differs", "reason_required"]


@given(st.sets(st.sampled_from(ORDER)))
def test_of_several_reasons_the_first_in_the_contracts_order_is_given(wrong: set[str]) -> None:
    if {"approval_expired", "already_decided"} <= wrong:
        wrong = wrong - {"already_decided"}  # a record is one or the other
    status = "approved" if "already_decided" in wrong else "pending"
    facts = replace(PENDING, status=status, expires_at=NOW if "approval_expired" in wrong else PENDING.expires_at)
    user = "asker" if "own_request" in wrong else "reviewer-1"
    votes = (Vote(user, user, True),) if "already_voted" in wrong else ()
    claim = Claimed("ann", "Ann", NOW + timedelta(minutes=1), NOW) if "claimed" in wrong else None
    facts = replace(facts, votes=votes, claim=claim)
    decider = Decider(user, frozenset() if "role_required" in wrong else frozenset({"reviewer"}))
    digest = "stale" if "digest_differs" in wrong else "digest"
    expected = next((each for each in ORDER if each in wrong), None)
    assert code(facts, decider, R, {"reasoned": "reason_required" not in wrong}, digest) == expected


@given(
    st.sampled_from(["pending", "approved", "expired", "cancelled"]),
    st.sampled_from(["asker", "other"]),
    st.sets(st.sampled_from(["reviewer", "admin"])),
    st.booleans(),
    st.sampled_from(["digest", "stale"]),
    st.sampled_from(Decision),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_nothing_is_decided_unless_all_of_it_is_in_order(
    status: str,
    user: str,
    roles: set[str],
    late: bool,
    digest: str,
    decision: Decision,
    reasoned: bool,
    args: bool,
    text: bool,
) -> None:
    facts = replace(PENDING, status=status, expires_at=NOW if late else PENDING.expires_at)
    taken = refusal(
        facts, Decider(user, frozenset(roles)), decision, digest, reasoned=reasoned, args_given=args, text=text
    )
    if taken is None:
        assert status == "pending" and not late and user != "asker" and "reviewer" in roles and digest == "digest"
        assert args == (decision is Decision.EDIT)
        assert decision is not Decision.REJECT or reasoned
        assert decision is not Decision.RESPOND or text


@pytest.mark.parametrize(
    ("facts", "decider", "digest", "expected"),
    [
        (PENDING, Decider("somebody", frozenset()), "digest", "role_required"),
        (replace(PENDING, status="approved"), REVIEWER, "digest", "already_decided"),
        (replace(PENDING, status="expired"), REVIEWER, "digest", "approval_expired"),
        (PENDING, REVIEWER, "another", "digest_differs"),
        (PENDING, REVIEWER, "digest", "not_in_bulk"),
    ],
)
def test_what_a_route_does_not_take_is_said_after_all_but_the_other_422s(
    facts: Facts, decider: Decider, digest: str, expected: str
) -> None:
    unfit = CallerError("not_in_bulk", "", status=422)
    found = refusal(facts, decider, Decision.REJECT, digest, **FINE, unfit=unfit)
    assert found is not None and found.code == expected


@given(st.frozensets(st.sampled_from(["requester", "reviewer", "admin"])), st.booleans())
def test_whoever_may_decide_sees_everything_and_others_their_own(roles: frozenset[str], own: bool) -> None:
    sees = Decider("ann", roles).sees("ann" if own else "bob")
    assert sees is (own or bool(roles & {"reviewer", "admin"}))


def test_every_decision_has_a_status_of_its_own() -> None:
    assert set(STATUS_OF) == set(Decision)
    assert len(set(STATUS_OF.values())) == len(Decision)
