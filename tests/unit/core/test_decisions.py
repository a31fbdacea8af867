"""Decisions on approvals: what they make of a request and cover, claims, who hands over, what counts as an answer."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.agents import ToolCard
from perdure.contracts.approvals import RequestKind
from perdure.contracts.calls import EffectClass
from perdure.contracts.errors import CallerError
from perdure.core.approvals import assignments, decisions, validity
from perdure.core.approvals.assignments import reassignment_refusal, reviewers_after, withdrawal_refusal
from perdure.core.approvals.decisions import (
    MAX_CLAIM_SECONDS,
    ApprovalRecord,
    Decider,
    Decision,
    ReviewClaim,
    Reviewer,
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
REVIEWER = frozenset({"reviewer"})
ONE = Decider("reviewer-1", REVIEWER)
ANNS_SEAT = Reviewer("ann", "Ann", REVIEWER)
AS_ANN = Decider("reviewer-1", REVIEWER, "One", (ANNS_SEAT,))
OWN, FOR_ANN = Vote("somebody", "reviewer-1", True), Vote("somebody", "ann", True)
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
    assert code(WAITING, ONE, decision, parts) == expected


@pytest.mark.parametrize(("record", "decider", "expected"), [
    (WAITING, Decider("somebody", frozenset()), ("role_required", 403)),
    (WAITING, Decider("somebody", frozenset({"admin"})), ("role_required", 403)),
    (WAITING, Decider("asker", frozenset({"reviewer"})), ("own_request", 403)),
    (replace(WAITING, allow_self_approval=True), Decider("asker", frozenset({"reviewer"})), None),
    *((replace(WAITING, status=status), ONE, ("already_decided", 409)) for status in CLOSED),
    (replace(WAITING, status="expired"), ONE, ("approval_expired", 410)),
    (replace(WAITING, expires_at=NOW), ONE, ("approval_expired", 410)),
    (replace(WAITING, expires_at=NOW + timedelta(microseconds=1)), ONE, None),
    # Decided in time stays decided, however late one asks.
    (replace(WAITING, status="approved", expires_at=NOW), ONE, ("already_decided", 409)),
    (replace(WAITING, digest="another"), ONE, ("digest_differs", 409)),
    (replace(WAITING, claim=ReviewClaim("ann", "Ann", NOW + timedelta(seconds=1), NOW)), ONE, ("claimed", 409)),
    (replace(WAITING, claim=ReviewClaim("ann", "Ann", NOW, NOW)), ONE, None),
    (replace(WAITING, claim=ReviewClaim("reviewer-1", "One", NOW + timedelta(hours=1), NOW)), ONE, None),
    (replace(WAITING, votes=(Vote("reviewer-1", "reviewer-1", True),)), ONE, ("already_voted", 409)),
    (replace(WAITING, votes=(Vote("reviewer-1", "ann", False),)), AS_ANN, ("already_voted", 409)),
    (replace(WAITING, votes=(OWN,)), ONE, ("already_voted", 409)),
    (replace(WAITING, votes=(OWN,)), AS_ANN, None),
    (replace(WAITING, votes=(OWN, Vote("other", "ann", True))), AS_ANN, ("already_voted", 409)),
    (replace(WAITING, reviewers=("Ann",)), ONE, ("not_a_reviewer", 403)),
    (replace(WAITING, reviewers=("Ann",)), AS_ANN, None),
    (replace(WAITING, reviewers=("Ann",), votes=(FOR_ANN,)), AS_ANN, ("already_voted", 409)),
    (replace(WAITING, reviewers=("Ann",), assignee="reviewer-1"), ONE, None),
    (replace(WAITING, requested_by="ann"), Decider("bob", frozenset(), "Bob", (ANNS_SEAT,)), ("role_required", 403)),
    (replace(WAITING, requested_by="ann", reviewers=("Ann",)), AS_ANN, ("own_request", 403)),
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
    assert decisions.represented_reviewer(WAITING, AS_ANN).user_id == "reviewer-1"
    assert decisions.represented_reviewer(replace(WAITING, votes=(OWN,)), AS_ANN).user_id == "ann"
    assert decisions.represented_reviewer(replace(WAITING, reviewers=("Ann",)), AS_ANN).user_id == "ann"


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


TEXT = {"type": "string", "minLength": 1}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"text": TEXT}, "required": ["text"]}
SCHEMA["additionalProperties"] = False
OPEN = validity.QuestionRecord("clarification", "pending", SCHEMA, NOW + timedelta(days=1), NOW)
SAID: dict[str, Any] = {"text": "the second one"}
ANSWERED = replace(OPEN, status="answered")


@pytest.mark.parametrize(("asked", "kind", "payload", "code"), [
    (OPEN, "clarification", SAID, None),
    *((OPEN, "clarification", said, "answer_invalid") for said in ({}, {"text": ""}, {"text": "a", "more": 1})),
    (OPEN, "clarification", {"text": "half \ud800"}, "answer_invalid"),
    (OPEN, "clarification", {"text": "a" * validity.MAX_ANSWER_CHARACTERS}, "answer_too_large"),
    (OPEN, "client_run", SAID, "wrong_kind"),
    (ANSWERED, "client_run", {}, "already_answered"),
    (replace(ANSWERED, over=True), "clarification", SAID, "already_answered"),
    (replace(OPEN, status="expired"), "clarification", SAID, "question_expired"),
    (replace(OPEN, expires_at=NOW), "clarification", SAID, "question_expired"),
    (replace(OPEN, over=True), "clarification", SAID, "turn_stopped"),
    (replace(OPEN, status="cancelled"), "clarification", SAID, "turn_stopped"),
])  # fmt: skip
def test_the_first_reason_refuses_an_answer(
    asked: validity.QuestionRecord, kind: str, payload: dict[str, Any], code: str | None
) -> None:
    refused = validity.answer_refusal(asked, kind, payload)
    assert (refused.code if refused else None) == code


asking = st.builds(
    validity.QuestionRecord,
    st.sampled_from(["clarification", "client_run"]),
    st.sampled_from(["pending", "answered", "expired", "cancelled"]),
    st.just(SCHEMA),
    st.integers(-2, 2).map(lambda hours: NOW + timedelta(hours=hours)),
    st.just(NOW),
    st.booleans(),
)
values = st.text("ab", max_size=2) | st.integers(0, 3)
payloads = st.dictionaries(st.sampled_from(["text", "other"]), values, max_size=2)


@given(asking, st.sampled_from(["clarification", "client_run", "other"]), payloads)
def test_a_valid_answer_in_time_is_accepted(asked: validity.QuestionRecord, kind: str, payload: dict[str, Any]) -> None:
    if validity.answer_refusal(asked, kind, payload) is None:
        assert asked.status == "pending" and asked.expires_at > NOW and not asked.over and kind == asked.kind
        assert set(payload) == {"text"} and payload["text"]


AMOUNT = {"type": "object", "properties": {"amount": {"type": "integer"}}, "additionalProperties": False}
READS = {"effect": EffectClass.READ, "needs_approval": False}
FREE = ToolCard(name="look", description="", parameters=AMOUNT, version="v1", **READS)
GATED = FREE.model_copy(update={"needs_approval": True})
NEWER = GATED.model_copy(update={"version": "v2"})
STRICTER = GATED.model_copy(update={"parameters": {"type": "object", "required": ["reason"]}})
APPROVED = validity.ApprovalValidity("a1", "approved", "v1", {"amount": 5}, True, "", False)


@pytest.mark.parametrize(("card", "here", "approval", "is_void"), [
    (FREE, FREE, None, False),
    *((GATED, GATED, each, False) for each in (APPROVED, replace(APPROVED, status="edited", edited=True))),
    (GATED, GATED, replace(APPROVED, status="reserved"), False),
    *((None, FREE, None, True), (FREE, None, None, True), (GATED, GATED, None, True)),
    *((GATED, other, APPROVED, True) for other in (NEWER, STRICTER)),
    (FREE, FREE, replace(APPROVED, status="rejected"), True),
    *((GATED, GATED, replace(APPROVED, **other), True) for other in ({"intact": False}, {"tool_version": "v0"})),
    (GATED, GATED, replace(APPROVED, args={"amount": "five"}), True),
    *(
        (GATED, GATED, replace(APPROVED, status=status), True)
        for status in ("pending", "rejected", "expired", "cancelled", "done", "failed", "withdrawn", "responded")
    ),
])  # fmt: skip
def test_each_reason_voids_a_call(
    card: ToolCard | None, here: ToolCard | None, approval: validity.ApprovalValidity | None, is_void: bool
) -> None:
    assert (validity.call_refusal(card, here, validity.PlannedVersion("v1"), approval) is not None) is is_void


KEPT = replace(APPROVED, policy_digest="p1")
K, D = RequestKind, Decision


@pytest.mark.parametrize(("approval", "in_force", "is_lapsed"), [
    (KEPT, validity.InForce("p1", ("v1",)), False),
    (None, None, False),
    *(
        (KEPT, other, True)
        for other in (None, *(validity.InForce(*each) for each in (("p2", ("v1",)), ("p2", ("v2",)), ("p1", ()))))
    ),
    (KEPT, validity.InForce("p1", ("v2",)), False),
    (APPROVED, validity.InForce("p2", ("v1",)), False),
    (replace(KEPT, status="edited"), validity.InForce("p2", ("v1",)), True),
    # What an attempt has reserved, the next one may finish; what is denied anyway has its own reason.
    (replace(KEPT, status="reserved"), validity.InForce("p2", ("v2",)), False),
    (replace(KEPT, status="rejected"), None, False),
])  # fmt: skip
def test_an_unused_approval_is_void_if_its_policy_or_tool_changed(
    approval: validity.ApprovalValidity | None, in_force: validity.InForce | None, is_lapsed: bool
) -> None:
    assert (validity.lapse(approval, in_force, "v1") is not None) is is_lapsed


def test_an_approval_of_rule_1_is_valid_only_for_the_published_tool() -> None:
    for versions, is_lapsed in ((("v9", "v1"), False), (("v9",), True)):
        lapse = validity.lapse(KEPT, validity.InForce("p1", versions), "v9")
        assert (lapse is not None and lapse.by_version) is is_lapsed


@pytest.mark.parametrize(("effect", "change", "is_reserved", "runs"), [
    (EffectClass.READ, {}, True, True),
    (EffectClass.LOCAL, {}, True, True),
    (EffectClass.KEYED, {}, False, True),
    (EffectClass.KEYED, {}, True, False),
    (EffectClass.OPAQUE, {"needs_approval": True}, False, False),
    (EffectClass.OPAQUE, {"effect": EffectClass.READ}, False, False),
    (EffectClass.READ, {"parameters": {"required": ["to"]}}, False, False),
])  # fmt: skip
def test_a_call_that_nobody_approved_runs_in_the_version_of_a_deploy(
    effect: EffectClass, change: dict[str, Any], is_reserved: bool, runs: bool
) -> None:
    old = ToolCard(name="t", description="", parameters={}, effect=effect, needs_approval=False, version="v1")
    new = old.model_copy(update={"version": "v2", **change})
    planned = validity.PlannedVersion("v1", {}, is_reserved)
    assert (validity.call_refusal(old, new, planned, None) is None) is runs


@pytest.mark.parametrize("effect", EffectClass)
def test_what_a_dead_attempt_reserved_is_asked_again_only_if_it_left_nothing(effect: EffectClass) -> None:
    changed = validity.Refusal("changed", by_version=True)
    leaves_nothing = effect in (EffectClass.READ, EffectClass.LOCAL)
    assert changed.outdates(replace(KEPT, status="reserved"), effect) is leaves_nothing
    assert changed.outdates(KEPT, effect) and not validity.Refusal("no").outdates(KEPT, effect)
    assert not changed.outdates(replace(KEPT, kind="checkpoint"), effect)


def test_a_call_waits_for_the_end_of_its_hold() -> None:
    def held(status: str, ready_at: datetime | None) -> bool:
        return replace(APPROVED, status=status, ready_at=ready_at).holds(NOW)

    assert held("approved", NOW + timedelta(microseconds=1)) and held("edited", NOW + timedelta(days=1))
    assert not held("approved", None) and not held("approved", NOW) and not held("reserved", NOW + timedelta(days=1))


@pytest.mark.parametrize(("policy_digest", "in_force", "is_outdated"), [
    ("p1", validity.InForce("p1", ("v1",)), False),
    *(("p1", validity.InForce(*now), True) for now in (("p2", ("v1",)), ("p1", ("v2",)), ("p1", ()), ("p2", ("v2",)))),
    ("p1", validity.InForce("p1", ("v2", "v1")), False),
    ("p1", None, True),
    ("", validity.InForce("p2", ("v1",)), False),
    ("", validity.InForce("p2", ("v2",)), True),
])  # fmt: skip
def test_a_change_outdates_a_request(policy_digest: str, in_force: validity.InForce | None, is_outdated: bool) -> None:
    assert (validity.outdated_reason(policy_digest, "v1", in_force) is not None) is is_outdated


def test_a_call_runs_only_after_an_approving_or_editing_decision() -> None:
    assert validity.decisions_that_run(K.APPROVAL, "pay") == {D.APPROVE, D.EDIT}
    assert validity.decisions_that_run(K.CHECKPOINT, "pay") == {D.EDIT}
    assert validity.decisions_that_run(K.CHECKPOINT, "") == validity.decisions_that_run(K.LIMIT, "") == set()
    for kind, tool in product(K, ("", "pay")):
        assert not validity.decisions_that_run(kind, tool) & {D.REJECT, D.RESPOND}, "possible however outdated"


@pytest.mark.parametrize(("kind", "tool", "ahead", "not_ahead"), [
    (K.APPROVAL, "pay", "pending approved edited", "rejected expired reserved done withdrawn"),
    (K.CHECKPOINT, "pay", "pending edited", "approved"),
    (K.CHECKPOINT, "", "", "pending"),
    (K.LIMIT, "", "", "pending approved"),
])  # fmt: skip
def test_a_call_is_ahead_until_it_starts_or_is_void(kind: RequestKind, tool: str, ahead: str, not_ahead: str) -> None:
    assert all(validity.has_call_ahead(status, kind, tool) for status in ahead.split())
    assert not any(validity.has_call_ahead(status, kind, tool) for status in not_ahead.split())


LATER = NOW + timedelta(hours=1)
PENDING = ApprovalRecord("pending", "digest", NOW + timedelta(days=7), NOW, "asker", "reviewer", False, {})
NAMED = replace(PENDING, reviewers=("Ann", "Bob"))
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
    refusal = assignments.reassigner_refusal(record, who)
    assert (refusal.code if refusal else None) == expected


CARLS_SEAT = Reviewer("carl", "Carl", REVIEWER)


@pytest.mark.parametrize(("record", "to", "is_allowed"), [
    (PENDING, CARLS_SEAT, True),
    (PENDING, replace(CARLS_SEAT, roles=frozenset({"admin"})), False),
    (PENDING, Reviewer("asker", "Asker", REVIEWER), False),
    (replace(PENDING, votes=(Vote("carl", "carl", True),)), CARLS_SEAT, False),
    (replace(PENDING, votes=(Vote("dora", "carl", True),)), CARLS_SEAT, False),
])  # fmt: skip
def test_a_request_is_reassigned_to_who_can_decide(record: ApprovalRecord, to: Reviewer, is_allowed: bool) -> None:
    refusal = reassignment_refusal(record, to)
    assert ((refusal.code, refusal.http) if refusal else None) == (None if is_allowed else ("cannot_decide", 422))


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
    refusal = assignments.release_refusal(replace(PENDING, claim=claim), who)
    assert (refusal.code if refusal else None) == expected


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
    refusal = withdrawal_refusal(replace(PENDING, status=status), who, deciders, "approval")
    assert (refusal.code if refusal else None) == expected


@pytest.mark.parametrize("kind", ["checkpoint", "limit"])
def test_an_approval_without_a_stoppable_call_is_not_withdrawn(kind: str) -> None:
    refusal = withdrawal_refusal(replace(PENDING, status="approved"), ANN, DECIDERS, kind)
    assert refusal is not None and (refusal.code, refusal.http) == ("already_running", 409)
    assert withdrawal_refusal(replace(PENDING, status="edited"), ANN, DECIDERS, kind) is None
    assert withdrawal_refusal(PENDING, ASKER, frozenset(), kind) is None
