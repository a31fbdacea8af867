"""A planned call may run as it stands only where its tool, its approval and its arguments are what was agreed on."""

from dataclasses import replace

import pytest

from contracts.agents import EffectClass, ToolCard
from policy.covering import Covering, why_void

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
    *(
        (GATED, GATED, replace(APPROVED, status=status), f"is {status}")
        for status in ("pending", "rejected", "responded", "expired", "cancelled", "withdrawn", "done", "failed")
    ),
]


@pytest.mark.parametrize(("card", "here", "approval", "why"), CASES)
def test_a_call_is_void_for_exactly_these_reasons(
    card: ToolCard | None, here: ToolCard | None, approval: Covering | None, why: str | None
) -> None:
    told = why_void(card, here, "v1", approval)
    assert told is None if why is None else why in (told or "")
