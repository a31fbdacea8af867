"""Whether an answer counts, what an approval covers and when it is outdated."""

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
from perdure.core.approvals import validity
from perdure.core.approvals.decisions import Decision

NOW = datetime(2026, 1, 1, tzinfo=UTC)
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
    assert (validity.call_refusal(card, here, "v1", approval) is not None) is is_void


KEPT = replace(APPROVED, policy_digest="p1")
K, D = RequestKind, Decision


@pytest.mark.parametrize(("approval", "in_force", "is_lapsed"), [
    (KEPT, validity.InForce("p1", "v1"), False),
    (None, None, False),
    *(
        (KEPT, other, True)
        for other in (None, validity.InForce("p2", "v1"), validity.InForce("p1", "v2"), validity.InForce("p1", ""))
    ),
    (APPROVED, validity.InForce("p2", "v1"), False),
    (replace(KEPT, status="edited"), validity.InForce("p2", "v1"), True),
    # What an attempt has reserved, the next one may finish; what is denied anyway has its own reason.
    (replace(KEPT, status="reserved"), validity.InForce("p2", "v2"), False),
    (replace(KEPT, status="rejected"), None, False),
])  # fmt: skip
def test_an_unused_approval_is_void_if_its_policy_or_tool_changed(
    approval: validity.ApprovalValidity | None, in_force: validity.InForce | None, is_lapsed: bool
) -> None:
    assert (validity.lapse_reason(approval, in_force) is not None) is is_lapsed


def test_a_call_waits_for_the_end_of_its_hold() -> None:
    def held(status: str, ready_at: datetime | None) -> bool:
        return replace(APPROVED, status=status, ready_at=ready_at).holds(NOW)

    assert held("approved", NOW + timedelta(microseconds=1)) and held("edited", NOW + timedelta(days=1))
    assert not held("approved", None) and not held("approved", NOW) and not held("reserved", NOW + timedelta(days=1))


@pytest.mark.parametrize(("policy_digest", "in_force", "is_outdated"), [
    ("p1", validity.InForce("p1", "v1"), False),
    *(("p1", validity.InForce(*now), True) for now in (("p2", "v1"), ("p1", "v2"), ("p1", ""), ("p2", "v2"))),
    ("p1", None, True),
    ("", validity.InForce("p2", "v1"), False),
    ("", validity.InForce("p2", "v2"), True),
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
