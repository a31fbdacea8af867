"""Many decisions at once, in front of an API that says what it is told to."""

from typing import Any

from tests.unit.reviewer.conftest import Browse, SpokenApi

ID = "01920000-0000-7000-8000-000000000000"
CHECKPOINT: dict[str, Any] = {
    "id": ID, "kind": "checkpoint", "checkpoint": "pre_filing", "tool": "assemble", "status": "pending",
    "args": {"well": "Mitchell"}, "result": {"filing": "the <b>text that is filed"}, "digest": "d" * 64,
    "risk": "high", "agent": "rule_37", "requested_by": "ann", "allowed_decisions": ["approve", "reject"],
    "reject_reasons": ["too early"], "turn_id": "t", "version": 1, "args_schema": {}, "history": [],
}  # fmt: skip


async def test_what_a_checkpoint_has_to_show_is_seen_before_it_is_rejected_among_others(
    api: SpokenApi, browse: Browse
) -> None:
    api.answers[f"/v1/approvals/{ID}"] = (200, CHECKPOINT)
    page = (await browse("/review/bulk", "POST", data={"csrf": "f-1", "decision": "reject", "pick": ID})).text
    assert "the &lt;b&gt;text that is filed" in page and "Mitchell" in page
    assert 'value="too early"' in page and "This is not needed." not in page
    api.answers[f"/v1/approvals/{ID}"] = (200, {**CHECKPOINT, "reject_reasons": []})
    page = (await browse("/review/bulk", "POST", data={"csrf": "f-1", "decision": "reject", "pick": ID})).text
    assert 'value="This is not needed."' in page
