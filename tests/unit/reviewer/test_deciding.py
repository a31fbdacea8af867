"""A decision, its edit and what becomes of what was typed, in front of an API that says what it is told to."""

from typing import Any

import pytest

from tests.unit.reviewer.conftest import Browse, SpokenApi

ID = "0192aaaa-0000-7000-8000-000000000001"
CENTS = {"anyOf": [{"type": "integer", "maximum": 7450}, {"type": "null"}]}
CALL: dict[str, Any] = {
    "id": ID, "kind": "approval", "tool": "refund", "status": "pending", "digest": "d" * 64, "risk": "high",
    "agent": "refunds", "requested_by": "ann", "turn_id": "t", "version": 1,
    "args": {"order": "2002", "cents": 100}, "allowed_decisions": ["approve", "edit", "reject", "respond"],
    "schema": {"properties": {"order": {"type": "string"}, "cents": CENTS}, "required": ["order"]},
}  # fmt: skip


@pytest.fixture
def asked(api: SpokenApi) -> SpokenApi:
    """An API with one call that waits."""
    api.answers |= {f"/v1/approvals/{ID}": (200, CALL), "/v1/approvals": (200, {"items": []})}
    return api


async def test_a_field_that_does_not_fit_says_why_beside_it(asked: SpokenApi, browse: Browse) -> None:
    typed = {"csrf": "f-1", "digest": "d" * 64, "as": "fields", "arg.0": "2002", "arg.1": "999999"}
    page = await browse(f"/review/{ID}/edit", "POST", data=typed)
    assert page.status_code == 422 and "see the fields" in page.text
    assert '<p class="fault" id="arg.1-fault">999999 is greater than the maximum of 7450</p>' in page.text
    whole = await browse(f"/review/{ID}/edit", "POST", data={**typed, "as": "json", "json": '{"order": 1}'})
    assert whole.status_code == 422 and "is not of type" in whole.text
