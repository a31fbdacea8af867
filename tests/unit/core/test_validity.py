"""Whether an answer counts, what an approval covers and when it is outdated."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.agents import ToolCard
from perdure.contracts.approvals import RequestKind
from perdure.contracts.calls import EffectClass
from perdure.core.approvals.decisions import Decision
from perdure.core.approvals.validity import (
    MOST_CHARACTERS,
    Asked,
    Covering,
    InForce,
    answer_refusal,
    has_call_ahead,
    runs_by,
    why_lapsed,
    why_outdated,
    why_void,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string", "minLength": 1}},
    "required": ["text"],
    "additionalProperties": False,
}
OPEN = Asked("clarification", "pending", SCHEMA, NOW + timedelta(days=1), NOW)
SAID: dict[str, Any] = {"text": "the second one"}


@pytest.mark.parametrize(
    ("asked", "kind", "payload", "code"),
    [
        (OPEN, "clarification", SAID, None),
        (OPEN, "clarification", {}, "answer_invalid"),
        (OPEN, "clarification", {"text": ""}, "answer_invalid"),
        (OPEN, "clarification", {"text": "a", "more": 1}, "answer_invalid"),
        (OPEN, "clarification", {"text": "half \ud800"}, "answer_invalid"),
        (OPEN, "clarification", {"text": "a" * MOST_CHARACTERS}, "answer_too_large"),
        (OPEN, "client_run", SAID, "wrong_kind"),
        (replace(OPEN, status="answered"), "client_run", {}, "already_answered"),
        (replace(OPEN, status="answered", over=True), "clarification", SAID, "already_answered"),
        (replace(OPEN, status="expired"), "clarification", SAID, "question_expired"),
        (replace(OPEN, expires_at=NOW), "clarification", SAID, "question_expired"),
        (replace(OPEN, over=True), "clarification", SAID, "turn_stopped"),
        (replace(OPEN, status="cancelled"), "clarification", SAID, "turn_stopped"),
    ],
)
def test_the_first_reason_in_the_contracts_order_refuses_an_answer(
    asked: Asked, kind: str, payload: dict[str, Any], code: str | None
) -> None:
    refused = answer_refusal(asked, kind, payload)
    assert (refused.code if refused else None) == code


@given(
    st.builds(
        Asked,
        st.sampled_from(["clarification", "client_run"]),
        st.sampled_from(["pending", "answered", "expired", "cancelled"]),
        st.just(SCHEMA),
        st.integers(-2, 2).map(lambda hours: NOW + timedelta(hours=hours)),
        st.just(NOW),
        st.booleans(),
    ),
    st.sampled_from(["clarification", "client_run", "other"]),
    st.dictionaries(st.sampled_from(["text", "other"]), st.text("ab", max_size=2) | st.integers(0, 3), max_size=2),
)
def test_nothing_counts_but_a_fitting_answer_in_time_to_a_turn_that_goes_on(
    asked: Asked, kind: str, payload: dict[str, Any]
) -> None:
    if answer_refusal(asked, kind, payload) is None:
        assert asked.status == "pending" and asked.expires_at > NOW and not asked.over and kind == asked.kind
        assert set(payload) == {"text"} and payload["text"]


FREE = ToolCard(
    name="look",
    description="",
    parameters={"type": "object", "properties": {"amount": {"type": "integer"}}, "additionalProperties": False},
    effect=EffectClass.READ,
    needs_approval=False,
    version="v1",
)
GATED = FREE.model_copy(update={"needs_approval": True})
NEWER = GATED.model_copy(update={"version": "v2"})
STRICTER = GATED.model_copy(update={"parameters": {"type": "object", "required": ["reason"]}})
APPROVED = Covering("a1", "approved", "v1", {"amount": 5}, True, "", False)
CASES: list[tuple[ToolCard | None, ToolCard | None, Covering | None, bool]] = [
    (FREE, FREE, None, False),
    (GATED, GATED, APPROVED, False),
    (GATED, GATED, replace(APPROVED, status="edited", edited=True), False),
    (GATED, GATED, replace(APPROVED, status="reserved"), False),
    (None, FREE, None, True),
    (FREE, None, None, True),
    (GATED, NEWER, APPROVED, True),
    (GATED, GATED, None, True),
    (FREE, FREE, replace(APPROVED, status="rejected"), True),
    (GATED, GATED, replace(APPROVED, intact=False), True),
    (GATED, GATED, replace(APPROVED, tool_version="v0"), True),
    (GATED, STRICTER, APPROVED, True),
    (GATED, GATED, replace(APPROVED, args={"amount": "five"}), True),
    (GATED, GATED, replace(APPROVED, status="withdrawn"), True),
    (GATED, GATED, replace(APPROVED, status="responded"), True),
    *(
        (GATED, GATED, replace(APPROVED, status=status), True)
        for status in ("pending", "rejected", "expired", "cancelled", "done", "failed")
    ),
]


@pytest.mark.parametrize(("card", "here", "approval", "is_void"), CASES)
def test_a_call_is_void_for_exactly_these_reasons(
    card: ToolCard | None, here: ToolCard | None, approval: Covering | None, is_void: bool
) -> None:
    assert (why_void(card, here, "v1", approval) is not None) is is_void


KEPT = replace(APPROVED, policy_digest="p1")
SAME = InForce("p1", "v1")


@pytest.mark.parametrize(
    ("approval", "in_force", "is_lapsed"),
    [
        (KEPT, SAME, False),
        (None, None, False),
        (KEPT, None, True),
        (KEPT, InForce("p2", "v1"), True),
        (KEPT, InForce("p1", "v2"), True),
        (KEPT, InForce("p1", ""), True),
        (APPROVED, InForce("p2", "v1"), False),
        (replace(KEPT, status="edited"), InForce("p2", "v1"), True),
        # What an attempt has reserved, the next one may finish; what is denied anyway has its own reason.
        (replace(KEPT, status="reserved"), InForce("p2", "v2"), False),
        (replace(KEPT, status="rejected"), None, False),
    ],
)
def test_an_approval_that_is_not_used_yet_counts_as_long_as_what_it_rests_on_stands(
    approval: Covering | None, in_force: InForce | None, is_lapsed: bool
) -> None:
    assert (why_lapsed(approval, in_force) is not None) is is_lapsed


COVERING_NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "ready_at", "held"),
    [
        ("approved", None, False),
        ("approved", COVERING_NOW, False),
        ("approved", COVERING_NOW + timedelta(microseconds=1), True),
        ("edited", COVERING_NOW + timedelta(days=1), True),
        ("reserved", COVERING_NOW + timedelta(days=1), False),
    ],
)
def test_a_call_waits_for_the_end_of_its_hold(status: str, ready_at: datetime | None, held: bool) -> None:
    assert replace(APPROVED, status=status, ready_at=ready_at).holds(COVERING_NOW) is held


K, D = RequestKind, Decision


@pytest.mark.parametrize(
    ("policy_digest", "in_force", "is_outdated"),
    [
        ("p1", InForce("p1", "v1"), False),
        ("p1", InForce("p2", "v1"), True),
        ("p1", InForce("p1", "v2"), True),
        ("p1", InForce("p1", ""), True),
        ("p1", InForce("p2", "v2"), True),
        ("p1", None, True),
        ("", InForce("p2", "v1"), False),
        ("", InForce("p2", "v2"), True),
    ],
)
def test_a_request_is_outdated_for_exactly_these_reasons(
    policy_digest: str, in_force: InForce | None, is_outdated: bool
) -> None:
    assert (why_outdated(policy_digest, "v1", in_force) is not None) is is_outdated


@pytest.mark.parametrize(
    ("kind", "tool", "decisions"),
    [
        (K.APPROVAL, "pay", {D.APPROVE, D.EDIT}),
        (K.CHECKPOINT, "pay", {D.EDIT}),
        (K.CHECKPOINT, "", set()),
        (K.LIMIT, "", set()),
    ],
)
def test_a_call_runs_by_these_decisions(kind: RequestKind, tool: str, decisions: set[Decision]) -> None:
    assert runs_by(kind, tool) == decisions


@pytest.mark.parametrize(
    ("status", "kind", "tool", "ahead"),
    [
        ("pending", K.APPROVAL, "pay", True),
        ("approved", K.APPROVAL, "pay", True),
        ("edited", K.APPROVAL, "pay", True),
        ("pending", K.CHECKPOINT, "pay", True),
        ("approved", K.CHECKPOINT, "pay", False),
        ("edited", K.CHECKPOINT, "pay", True),
        ("pending", K.CHECKPOINT, "", False),
        ("pending", K.LIMIT, "", False),
        ("approved", K.LIMIT, "", False),
        *((status, K.APPROVAL, "pay", False) for status in ("rejected", "expired", "reserved", "done", "withdrawn")),
    ],
)
def test_a_call_is_ahead_until_it_has_begun_or_never_will(
    status: str, kind: RequestKind, tool: str, ahead: bool
) -> None:
    assert has_call_ahead(status, kind, tool) is ahead


@given(st.sampled_from(RequestKind), st.text(max_size=3))
def test_a_request_can_always_be_rejected_or_answered_however_outdated(kind: RequestKind, tool: str) -> None:
    assert not runs_by(kind, tool) & {D.REJECT, D.RESPOND}
