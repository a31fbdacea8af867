"""Only what needs no second look is approved in one go."""

from dataclasses import replace

import pytest

from perdure.core.approvals.decisions import Asked, alone, approvable_together

LOW = Asked("approval", "desk", "note", "v1", "low")


@pytest.mark.parametrize(
    ("asked", "together"),
    [
        ([], True),
        ([LOW, LOW], True),
        ([LOW, replace(LOW, tool="label")], False),
        ([LOW, replace(LOW, risk="medium")], False),
        ([replace(LOW, risk="high")], False),
        ([LOW, replace(LOW, kind="checkpoint")], False),
        ([LOW, replace(LOW, agent_id="shop")], False),
        ([LOW, replace(LOW, tool_version="v2")], False),
        ([replace(LOW, kind="limit", tool="")], False),
    ],
)
def test_calls_of_low_risk_and_of_one_tool_of_one_agent_are_approved_together(
    asked: list[Asked], together: bool
) -> None:
    assert approvable_together(asked) is together


@pytest.mark.parametrize(
    ("kind", "risk", "says"),
    [
        ("approval", "low", ""),
        ("approval", "high", "this one's is high"),
        ("checkpoint", "low", "a checkpoint is read"),
        ("limit", "low", "a limit is raised"),
    ],
)
def test_why_one_is_approved_by_itself_is_told(kind: str, risk: str, says: str) -> None:
    assert says in alone(kind, risk) and bool(alone(kind, risk)) is bool(says)
