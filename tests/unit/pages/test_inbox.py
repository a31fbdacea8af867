"""What became of a person's decisions."""

import json

import pytest
from markupsafe import escape
from pydantic import JsonValue
from syrupy.assertion import SnapshotAssertion

from perdure.core.agents.prompts import as_changed
from perdure.pages.approvals.inbox import came_of
from tests.unit.pages.conftest import Browse, SpokenApi, ok, words_of

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


async def test_what_one_has_decided_is_told_with_what_became_of_it(
    api: SpokenApi, browse: Browse, snapshot: SnapshotAssertion
) -> None:
    at = "2026-01-01T10:00:00Z"
    one = {
        "id": "a-1", "kind": "approval", "tool": "refund", "agent": "desk", "requested_by": "ann", "says": "pay <b>all",
        "decision": "approve", "at": at, "comment": "fine <i>so", "voided_at": at, "status": "done", "turn_id": "t-1",
        "turn_status": "completed", "call_result": json.dumps({"message": "Order <u>1"}),
    }  # fmt: skip
    api.answers["/v1/approvals/decided"] = ok({"items": [one, {**one, "status": "pending", "voided_at": None}]})
    page = (await browse("/review/mine")).text
    assert 'href="/review/a-1"' in page and 'href="/turns/t-1"' in page
    for written in ("pay <b>all", "fine <i>so", "Order <u>1"):
        assert page.count(str(escape(written))) == 2 and written not in page
    assert words_of(page) == snapshot
