"""What became of a person's decisions."""

import json

import pytest
from pydantic import JsonValue

from perdure.core.agents.prompts import as_changed
from perdure.pages.approvals.inbox import came_of

REFUND: dict[str, JsonValue] = {"message": "Order 1 was refunded.", "amount_cents": 100}


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (json.dumps(REFUND), "Order 1 was refunded."),
        (json.dumps(as_changed({"order": "1"}, {**REFUND})), "Order 1 was refunded."),
        (json.dumps({"message": 5}), '{"message": 5}'),
        ('"done"', '"done"'),
        ('{"message": "cut o', '{"message": "cut o'),
        ("", ""),
    ],
)
def test_a_call_tells_its_sentence_for_people_or_all_that_it_answered(result: str, shown: str) -> None:
    assert came_of(result) == shown
