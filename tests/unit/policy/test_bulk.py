"""Only what needs no second look is approved in one go."""

import pytest

from policy.bulk import Asked, approvable_together

LOW = Asked("approval", "note", "low")


@pytest.mark.parametrize(
    ("asked", "together"),
    [
        ([], True),
        ([LOW, LOW], True),
        ([LOW, Asked("approval", "label", "low")], False),
        ([LOW, Asked("approval", "note", "medium")], False),
        ([Asked("approval", "note", "high")], False),
        ([LOW, Asked("checkpoint", "note", "low")], False),
        ([Asked("limit", "", "low")], False),
    ],
)
def test_calls_of_low_risk_and_of_one_tool_are_approved_together(asked: list[Asked], together: bool) -> None:
    assert approvable_together(asked) is together
