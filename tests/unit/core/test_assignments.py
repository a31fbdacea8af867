"""Who is asked, hands over and withdraws."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from perdure.core.approvals import assignments
from perdure.core.approvals.assignments import reassignment_refusal, reviewers_after, withdrawal_refusal
from perdure.core.approvals.decisions import ApprovalRecord, Decider, ReviewClaim, Reviewer, Vote

NOW = datetime(2026, 3, 1, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
PENDING = ApprovalRecord("pending", "digest", NOW + timedelta(days=7), NOW, "asker", "reviewer", False, {})
NAMED = replace(PENDING, reviewers=("Ann", "Bob"))
REVIEWER = frozenset({"reviewer"})
ANNS_SEAT = Reviewer("ann", "Ann", REVIEWER)
ANN, BOB, CARL = (Decider(name.lower(), REVIEWER, name) for name in ("Ann", "Bob", "Carl"))
ADMIN = Decider("root", frozenset({"admin"}), "Root")
STAND_IN = Decider("dora", REVIEWER, "Dora", (ANNS_SEAT,))
UNFIT = replace(STAND_IN, roles=frozenset())


@pytest.mark.parametrize(("record", "who", "expected"), [
    *((PENDING, ANN, None), (PENDING, ADMIN, None), (PENDING, STAND_IN, None), (PENDING, UNFIT, "role_required")),
    *((NAMED, UNFIT, "role_required"), (NAMED, STAND_IN, "only_stands_in")),
    (NAMED, replace(BOB, in_place_of=(ANNS_SEAT,)), None),
    (NAMED, replace(CARL, in_place_of=(ANNS_SEAT,)), "only_stands_in"),
    (NAMED, replace(ADMIN, in_place_of=(ANNS_SEAT,)), None),
    (PENDING, Decider("nobody", frozenset(), "Nobody"), "role_required"),
    (PENDING, Decider("asker", REVIEWER, "Asker"), "own_request"),
    (PENDING, Decider("asker", frozenset({"admin"}), "Asker"), "own_request"),
    # Another seat by delegation takes nothing away from an admin.
    (PENDING, Decider("root", frozenset({"admin"}), "Root", (Reviewer("asker", "Asker", REVIEWER),)), None),
    *((NAMED, CARL, "not_a_reviewer"), (NAMED, ADMIN, None), (replace(NAMED, assignee="carl"), CARL, None)),
    (replace(PENDING, status="approved"), ANN, "already_decided"),
    (replace(PENDING, expires_at=NOW), ANN, "approval_expired"),
    (replace(PENDING, claim=ReviewClaim("bob", "Bob", LATER, NOW)), ANN, "claimed"),
    (replace(PENDING, claim=ReviewClaim("bob", "Bob", NOW, NOW)), ANN, None),
    (replace(NAMED, votes=(Vote("ann", "ann", True),)), ANN, "already_voted"),
    (replace(PENDING, votes=(Vote("ann", "ann", True),)), ANN, None),
    # An assigned person who is not named has one place, too; it is not reassigned once it is used.
    (replace(NAMED, assignee="carl", votes=(Vote("carl", "carl", True),)), CARL, "already_voted"),
    (replace(NAMED, assignee="carl", votes=(Vote("dora", "carl", True),)), CARL, "already_voted"),
    (replace(NAMED, votes=(Vote("root", "ann", True),)), ADMIN, "already_voted"),
    (replace(NAMED, votes=(Vote("ann", "ann", True),)), ADMIN, None),
    (replace(NAMED, votes=(Vote("ann", "ann", True),)), BOB, None),
])  # fmt: skip
def test_reviewers_and_admins_reassign_a_request(record: ApprovalRecord, who: Decider, expected: str | None) -> None:
    found = assignments.reassigner_refusal(record, who)
    assert (found.code if found else None) == expected


CARLS_SEAT = Reviewer("carl", "Carl", REVIEWER)


@pytest.mark.parametrize(("record", "to", "is_allowed"), [
    (PENDING, CARLS_SEAT, True),
    (PENDING, replace(CARLS_SEAT, roles=frozenset({"admin"})), False),
    (PENDING, Reviewer("asker", "Asker", REVIEWER), False),
    (replace(PENDING, votes=(Vote("carl", "carl", True),)), CARLS_SEAT, False),
    (replace(PENDING, votes=(Vote("dora", "carl", True),)), CARLS_SEAT, False),
])  # fmt: skip
def test_a_request_is_reassigned_to_who_can_decide(record: ApprovalRecord, to: Reviewer, is_allowed: bool) -> None:
    found = reassignment_refusal(record, to)
    assert ((found.code, found.http) if found else None) == (None if is_allowed else ("cannot_decide", 422))


@pytest.mark.parametrize(("who", "to", "expected"), [
    *((ANN, "Carl", ("Carl", "Bob")), (BOB, "Carl", ("Ann", "Carl")), (ANN, "Bob", ("Ann", "Bob"))),
    *((ADMIN, "Carl", ("Ann", "Bob")), (STAND_IN, "Carl", ("Ann", "Bob"))),
    (replace(BOB, in_place_of=(ANNS_SEAT,)), "Carl", ("Ann", "Carl")),
])  # fmt: skip
def test_a_named_reviewer_is_replaced_by_the_new_assignee(who: Decider, to: str, expected: tuple[str, ...]) -> None:
    assert reviewers_after(NAMED, who, Reviewer(to.lower(), to, REVIEWER)) == expected
    assert reviewers_after(PENDING, who, Reviewer(to.lower(), to, REVIEWER)) == ()


ANNS = ReviewClaim("ann", "Ann", LATER, NOW)


@pytest.mark.parametrize(("claim", "who", "expected"), [
    *((ANNS, ANN, None), (ANNS, ADMIN, None), (ANNS, Decider("ann", frozenset(), "Ann"), None)),
    *((ANNS, BOB, "claimed"), (ANNS, Decider("asker", frozenset(), "Asker"), "role_required")),
    *((None, ANN, "not_claimed"), (None, ADMIN, "not_claimed"), (replace(ANNS, until=NOW), ANN, "not_claimed")),
])  # fmt: skip
def test_its_holder_or_an_admin_ends_a_claim(claim: ReviewClaim | None, who: Decider, expected: str | None) -> None:
    found = assignments.release_refusal(replace(PENDING, claim=claim), who)
    assert (found.code if found else None) == expected


ASKER = Decider("asker", frozenset({"requester"}))
NOBODY = Decider("nobody", frozenset({"requester"}))
DECIDERS = frozenset({"ann"})


@pytest.mark.parametrize(("status", "who", "expected"), [
    *(("pending", ASKER, None), ("pending", ADMIN, None)),
    *(("pending", ANN, "role_required"), ("pending", NOBODY, "role_required")),
    *(("approved", ANN, None), ("approved", BOB, None), ("approved", ADMIN, None), ("edited", BOB, None)),
    *(("approved", ASKER, "role_required"), ("approved", NOBODY, "role_required")),
    *(("reserved", ANN, "already_running"), ("reserved", ASKER, "role_required")),
    *(("done", ADMIN, "already_running"), ("outcome_unknown", BOB, "already_running")),
    *(("rejected", ASKER, "already_decided"), ("rejected", ADMIN, "already_decided")),
    *(("withdrawn", ASKER, "already_decided"), ("withdrawn", ANN, "already_decided")),
    *(("expired", ASKER, "approval_expired"), ("cancelled", ADMIN, "already_decided")),
    ("approved", Decider("ann", frozenset()), None),  # who lost the role still takes back the own decision
])  # fmt: skip
def test_requesters_and_approvers_withdraw_their_own(status: str, who: Decider, expected: str | None) -> None:
    deciders = DECIDERS if status not in ("pending", "expired") else frozenset[str]()
    found = withdrawal_refusal(replace(PENDING, status=status), who, deciders, "approval")
    assert (found.code if found else None) == expected


@pytest.mark.parametrize("kind", ["checkpoint", "limit"])
def test_an_approval_without_a_stoppable_call_is_not_withdrawn(kind: str) -> None:
    found = withdrawal_refusal(replace(PENDING, status="approved"), ANN, DECIDERS, kind)
    assert found is not None and (found.code, found.http) == ("already_running", 409)
    assert withdrawal_refusal(replace(PENDING, status="edited"), ANN, DECIDERS, kind) is None
    assert withdrawal_refusal(PENDING, ASKER, frozenset(), kind) is None
