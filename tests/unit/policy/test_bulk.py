"""Only what needs no second look is approved in one go."""

from dataclasses import replace

import pytest

from policy.bulk import Asked, approvable_together

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
