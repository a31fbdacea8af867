"""A planned call may run as it stands only where its tool, its approval and its arguments are what was agreed on."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from perdure.contracts.agents import ToolCard
from perdure.contracts.calls import EffectClass
from perdure.core.approvals.validity import Covering, InForce, why_lapsed, why_void

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

CASES: list[tuple[ToolCard | None, ToolCard | None, Covering | None, str | None]] = [
    (FREE, FREE, None, None),
    (GATED, GATED, APPROVED, None),
    (GATED, GATED, replace(APPROVED, status="edited", edited=True), None),
    (GATED, GATED, replace(APPROVED, status="reserved"), None),
    (None, FREE, None, "no such tool"),
    (FREE, None, None, "no such tool"),
    (GATED, NEWER, APPROVED, "has changed"),
    (GATED, GATED, None, "needs an approval and has none"),
    (FREE, FREE, replace(APPROVED, status="rejected"), "is rejected"),
    (GATED, GATED, replace(APPROVED, intact=False), "for another call"),
    (GATED, GATED, replace(APPROVED, tool_version="v0"), "for another call"),
    (GATED, STRICTER, APPROVED, "do not fit any more"),
    (GATED, GATED, replace(APPROVED, args={"amount": "five"}), "do not fit any more"),
    (GATED, GATED, replace(APPROVED, status="withdrawn"), "was withdrawn"),
    (GATED, GATED, replace(APPROVED, status="responded"), "the reason is the response"),
    *(
        (GATED, GATED, replace(APPROVED, status=status), f"is {status}")
        for status in ("pending", "rejected", "expired", "cancelled", "done", "failed")
    ),
]


@pytest.mark.parametrize(("card", "here", "approval", "why"), CASES)
def test_a_call_is_void_for_exactly_these_reasons(
    card: ToolCard | None, here: ToolCard | None, approval: Covering | None, why: str | None
) -> None:
    told = why_void(card, here, "v1", approval)
    assert told is None if why is None else why in (told or "")


KEPT = replace(APPROVED, policy_digest="p1")
SAME = InForce("p1", "v1")


@pytest.mark.parametrize(
    ("approval", "in_force", "why"),
    [
        (KEPT, SAME, None),
        (None, None, None),
        (KEPT, None, "not published any more"),
        (KEPT, InForce("p2", "v1"), "who decides"),
        (KEPT, InForce("p1", "v2"), "the tool has changed"),
        (KEPT, InForce("p1", ""), "the tool has changed"),
        (APPROVED, InForce("p2", "v1"), None),
        (replace(KEPT, status="edited"), InForce("p2", "v1"), "who decides"),
        # What an attempt has reserved, the next one may finish; what is denied anyway has its own reason.
        (replace(KEPT, status="reserved"), InForce("p2", "v2"), None),
        (replace(KEPT, status="rejected"), None, None),
    ],
)
def test_an_approval_that_is_not_used_yet_counts_as_long_as_what_it_rests_on_stands(
    approval: Covering | None, in_force: InForce | None, why: str | None
) -> None:
    told = why_lapsed(approval, in_force)
    assert told is None if why is None else why in (told or "")


NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "ready_at", "held"),
    [
        ("approved", None, False),
        ("approved", NOW, False),
        ("approved", NOW + timedelta(microseconds=1), True),
        ("edited", NOW + timedelta(days=1), True),
        ("reserved", NOW + timedelta(days=1), False),
    ],
)
def test_a_call_waits_for_the_end_of_its_hold(status: str, ready_at: datetime | None, held: bool) -> None:
    assert replace(APPROVED, status=status, ready_at=ready_at).holds(NOW) is held
