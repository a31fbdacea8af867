"""Decisions on approvals: what they make of a request, claims, and many at once."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.errors import CallerError
from perdure.core.approvals import decisions
from perdure.core.approvals.decisions import (
    MAX_CLAIM_SECONDS,
    ApprovalRecord,
    Decider,
    Decision,
    ReviewClaim,
    Vote,
    approvable_together,
)

LOW = decisions.DecisionRequest("approval", "desk", "note", "v1", "low")
OTHERS = [replace(LOW, tool="label"), replace(LOW, risk="medium"), replace(LOW, kind="checkpoint")]
OTHERS += [replace(LOW, agent_id="shop"), replace(LOW, tool_version="v2")]


def test_low_risk_calls_of_one_agents_tool_are_approved_together() -> None:
    assert approvable_together([]) and approvable_together([LOW, LOW])
    assert not any(approvable_together([LOW, other]) for other in OTHERS)
    assert not approvable_together([replace(LOW, risk="high")])
    assert not approvable_together([replace(LOW, kind="limit", tool="")])
    assert not decisions.single_decision_reason("approval", "low")
    assert decisions.single_decision_reason("approval", "high")
    assert decisions.single_decision_reason("checkpoint", "low") and decisions.single_decision_reason("limit", "low")


NOW = datetime(2026, 3, 1, tzinfo=UTC)


def at(seconds: int) -> datetime:
    return NOW + timedelta(seconds=seconds)


def anns_claim(since: int, until: int) -> ReviewClaim:
    return ReviewClaim("ann", "Ann", at(until), at(since))


@pytest.mark.parametrize(("before", "user", "seconds", "expected"), [
    *((None, "ann", 900, (0, 900)), (anns_claim(-60, 840), "ann", 900, (-60, 900))),
    *((anns_claim(-3_000, 60), "ann", 900, (-3_000, 600)), (anns_claim(-3_000, -10), "ann", 900, (-3_000, 600))),
    *((anns_claim(-3_599, 1), "ann", 3_600, (-3_599, 1)), (anns_claim(-3_900, -300), "ann", 3_600, (0, 3_600))),
    (anns_claim(-3_600, -1), "bob", 3_600, (0, 3_600)),
])  # fmt: skip
def test_claims_in_a_row_are_one_lease(before: ReviewClaim | None, user: str, seconds: int, expected: Any) -> None:
    assert decisions.claim_span(before, user, NOW, seconds) == tuple(map(at, expected))


@pytest.mark.parametrize("until", [0, -1, -299])
def test_a_used_up_lease_is_not_renewed_before_others_could_claim(until: int) -> None:
    with pytest.raises(CallerError) as refused:
        decisions.claim_span(anns_claim(until - MAX_CLAIM_SECONDS, until), "ann", NOW, 60)
    assert (refused.value.code, refused.value.http) == ("claimed_too_long", 409)
    assert refused.value.details == {"again_at": at(until + decisions.CLAIM_BREAK_SECONDS)}


@given(st.lists(st.tuples(st.integers(0, 900), st.integers(1, MAX_CLAIM_SECONDS)), min_size=1, max_size=30))
def test_a_claim_is_free_again_within_an_hour_whatever_its_renewals(tries: list[tuple[int, int]]) -> None:
    claim, now = None, NOW
    for wait, seconds in tries:
        now += timedelta(seconds=wait)
        try:
            since, until = decisions.claim_span(claim, "ann", now, seconds)
        except CallerError:
            assert claim is not None and not claim.is_active(now)
            continue
        assert now < until <= since + timedelta(seconds=MAX_CLAIM_SECONDS)
        if claim is not None and since != claim.since:
            assert now - claim.until >= timedelta(seconds=decisions.CLAIM_BREAK_SECONDS), "a break in between"
        claim = ReviewClaim("ann", "Ann", until, since)


WAITING = ApprovalRecord("pending", "digest", NOW + timedelta(days=7), NOW, "asker", "reviewer", False, {})
REVIEWER = Decider("reviewer-1", frozenset({"reviewer"}))
ANN = decisions.Reviewer("ann", "Ann", frozenset({"reviewer"}))
STAND_IN = Decider("reviewer-1", frozenset({"reviewer"}), "One", (ANN,))
OWN, ANNS = Vote("somebody", "reviewer-1", True), Vote("somebody", "ann", True)
CLOSED = ("approved", "cancelled", "reserved", "outcome_unknown")
FINE: dict[str, Any] = {"reasoned": False, "args_given": False, "text": False}


def code(
    record: ApprovalRecord, decider: Decider, decision: Decision, parts: Any, digest: str = "digest"
) -> str | None:
    found = decisions.decision_refusal(record, decider, decision, digest, **{**FINE, **parts})
    return found.code if found else None


A, E, R, S = Decision.APPROVE, Decision.EDIT, Decision.REJECT, Decision.RESPOND


@pytest.mark.parametrize(("decision", "parts", "expected"), [
    (A, {}, None),
    (A, {"args_given": True}, "args_unexpected"),
    *((E, {"args_given": True}, None), (E, {}, "args_required"), (R, {"reasoned": True}, None)),
    (R, {}, "reason_required"),
    (R, {"reasoned": True, "args_given": True}, "args_unexpected"),
    (S, {"text": True}, None),
    (S, {"reasoned": True}, "comment_required"),
    (S, {"text": True, "args_given": True}, "args_unexpected"),
])  # fmt: skip
def test_each_decision_needs_its_own_fields(decision: Decision, parts: dict[str, bool], expected: str | None) -> None:
    assert code(WAITING, REVIEWER, decision, parts) == expected


@pytest.mark.parametrize(("record", "decider", "expected"), [
    (WAITING, Decider("somebody", frozenset()), ("role_required", 403)),
    (WAITING, Decider("somebody", frozenset({"admin"})), ("role_required", 403)),
    (WAITING, Decider("asker", frozenset({"reviewer"})), ("own_request", 403)),
    (replace(WAITING, allow_self_approval=True), Decider("asker", frozenset({"reviewer"})), None),
    *((replace(WAITING, status=status), REVIEWER, ("already_decided", 409)) for status in CLOSED),
    (replace(WAITING, status="expired"), REVIEWER, ("approval_expired", 410)),
    (replace(WAITING, expires_at=NOW), REVIEWER, ("approval_expired", 410)),
    (replace(WAITING, expires_at=NOW + timedelta(microseconds=1)), REVIEWER, None),
    # Decided in time stays decided, however late one asks.
    (replace(WAITING, status="approved", expires_at=NOW), REVIEWER, ("already_decided", 409)),
    (replace(WAITING, digest="another"), REVIEWER, ("digest_differs", 409)),
    (replace(WAITING, claim=ReviewClaim("ann", "Ann", NOW + timedelta(seconds=1), NOW)), REVIEWER, ("claimed", 409)),
    (replace(WAITING, claim=ReviewClaim("ann", "Ann", NOW, NOW)), REVIEWER, None),
    (replace(WAITING, claim=ReviewClaim("reviewer-1", "One", NOW + timedelta(hours=1), NOW)), REVIEWER, None),
    (replace(WAITING, votes=(Vote("reviewer-1", "reviewer-1", True),)), REVIEWER, ("already_voted", 409)),
    (replace(WAITING, votes=(Vote("reviewer-1", "ann", False),)), STAND_IN, ("already_voted", 409)),
    (replace(WAITING, votes=(OWN,)), REVIEWER, ("already_voted", 409)),
    (replace(WAITING, votes=(OWN,)), STAND_IN, None),
    (replace(WAITING, votes=(OWN, Vote("other", "ann", True))), STAND_IN, ("already_voted", 409)),
    (replace(WAITING, reviewers=("Ann",)), REVIEWER, ("not_a_reviewer", 403)),
    (replace(WAITING, reviewers=("Ann",)), STAND_IN, None),
    (replace(WAITING, reviewers=("Ann",), votes=(ANNS,)), STAND_IN, ("already_voted", 409)),
    (replace(WAITING, reviewers=("Ann",), assignee="reviewer-1"), REVIEWER, None),
    (replace(WAITING, requested_by="ann"), Decider("bob", frozenset(), "Bob", (ANN,)), ("role_required", 403)),
    (replace(WAITING, requested_by="ann", reviewers=("Ann",)), STAND_IN, ("own_request", 403)),
])  # fmt: skip
def test_a_reviewer_decides_a_free_pending_request(record: ApprovalRecord, decider: Decider, expected: Any) -> None:
    found = decisions.decision_refusal(record, decider, Decision.APPROVE, "digest", **FINE)
    assert (found and (found.code, found.http)) == expected


FIRST: dict[str, object] = {"type": "approve", "by": "ann", "at": "2026-02-28T23:59:01.16712+00:00"}


@pytest.mark.parametrize(("status", "before"), [
    ("approved", FIRST), ("approved", {"type": "approve"}), ("withdrawn", FIRST),
], ids=["decided", "erased with its person", "taken back"])  # fmt: skip
def test_a_second_decision_is_refused_with_details_of_the_first(status: str, before: dict[str, object]) -> None:
    found = decisions.closed_refusal(replace(WAITING, status=status, decided_before=before))
    assert found is not None and found.code == "already_decided"
    assert found.details == {"status": status, "decision": before}


def test_a_decision_counts_as_ones_own_or_if_that_is_used_for_the_next_delegator() -> None:
    assert decisions.represented_reviewer(WAITING, STAND_IN).user_id == "reviewer-1"
    assert decisions.represented_reviewer(replace(WAITING, votes=(OWN,)), STAND_IN).user_id == "ann"
    assert decisions.represented_reviewer(replace(WAITING, reviewers=("Ann",)), STAND_IN).user_id == "ann"


ORDER = ["role_required", "own_request", "approval_expired", "already_decided"]
ORDER += ["already_voted", "claimed", "digest_differs", "not_in_bulk", "reason_required"]


@given(st.sets(st.sampled_from(ORDER)))
def test_the_first_refusal_in_contract_order_is_returned(wrong: set[str]) -> None:
    if {"approval_expired", "already_decided"} <= wrong:
        wrong = wrong - {"already_decided"}  # a record is one or the other
    status = "approved" if "already_decided" in wrong else "pending"
    record = replace(WAITING, status=status, expires_at=NOW if "approval_expired" in wrong else WAITING.expires_at)
    user = "asker" if "own_request" in wrong else "reviewer-1"
    votes = (Vote(user, user, True),) if "already_voted" in wrong else ()
    claim = ReviewClaim("ann", "Ann", NOW + timedelta(minutes=1), NOW) if "claimed" in wrong else None
    record = replace(record, votes=votes, claim=claim)
    decider = Decider(user, frozenset() if "role_required" in wrong else frozenset({"reviewer"}))
    digest = "stale" if "digest_differs" in wrong else "digest"
    expected = next((each for each in ORDER if each in wrong), None)
    unfit = CallerError("not_in_bulk", "", status=422) if "not_in_bulk" in wrong else None
    assert code(record, decider, R, {"reasoned": "reason_required" not in wrong, "unfit": unfit}, digest) == expected


@given(st.frozensets(st.sampled_from(["requester", "reviewer", "admin"])), st.booleans())
def test_reviewers_see_every_request_and_other_users_their_own(roles: frozenset[str], own: bool) -> None:
    assert Decider("ann", roles).sees("ann" if own else "bob") is (own or bool(roles & {"reviewer", "admin"}))
