"""What has changed since a request was opened, and which decisions that takes away."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.approvals import RequestKind
from perdure.core.approvals.decisions import Decision
from perdure.core.approvals.validity import InForce, has_call_ahead, runs_by, why_outdated

K, D = RequestKind, Decision


@pytest.mark.parametrize(
    ("policy_digest", "in_force", "why"),
    [
        ("p1", InForce("p1", "v1"), None),
        ("p1", InForce("p2", "v1"), "who decides on such calls has changed since"),
        ("p1", InForce("p1", "v2"), "the tool has changed since"),
        ("p1", InForce("p1", ""), "the tool has changed since"),
        ("p1", InForce("p2", "v2"), "who decides on such calls has changed since"),
        ("p1", None, "the agent is not published any more"),
        ("", InForce("p2", "v1"), None),
        ("", InForce("p2", "v2"), "the tool has changed since"),
    ],
)
def test_a_request_is_outdated_for_exactly_these_reasons(
    policy_digest: str, in_force: InForce | None, why: str | None
) -> None:
    assert why_outdated(policy_digest, "v1", in_force) == why


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
