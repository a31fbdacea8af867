"""What a call would change, on the page of its approval."""

from typing import Any

import pytest

from tests.unit.pages.conftest import Browse, SpokenApi

ID = "0192aaaa-0000-7000-8000-000000000001"
HOSTILE = "<script>window.hit = 1</script>\u202egnp"
AT = "2026-01-01T10:00:00+00:00"
SEEN = {"before": {"left": 100, "to": HOSTILE}, "after": {"left": 70, "to": HOSTILE}, "fault": None, "at": AT}
OFFERED = "Look at what it would change"


@pytest.mark.parametrize(
    ("status", "preview", "says", "says_not"),
    [
        ("pending", None, [], ["What it would change"]),
        ("pending", {}, [OFFERED], ["Read from the target"]),
        (
            "pending",
            SEEN | {"is_current": True},
            ["100", "70", "1 Jan 2026", "Look again"],
            ["changed since.</strong>"],
        ),
        ("pending", SEEN | {"is_current": False}, ["The arguments have been changed since"], []),
        ("pending", {"fault": HOSTILE, "at": AT, "is_current": True}, ["decided without one", "Look again"], ["<del>"]),
        ("done", SEEN | {"is_current": True}, ["70"], ["Look again"]),
        ("done", {}, [], ["What it would change"]),
        (
            "pending",
            SEEN | {"after": SEEN["before"], "is_current": True},
            ["Nothing that the tool looked at"],
            ["<del>"],
        ),
    ],
)
async def test_a_preview_is_offered_shown_or_said_to_have_failed(
    api: SpokenApi, browse: Browse, status: str, preview: dict[str, Any] | None, says: list[str], says_not: list[str]
) -> None:
    allowed = ["approve", "reject"] if status == "pending" else []
    approval = {"id": ID, "status": status, "tool": "pay", "preview": preview, "allowed_decisions": allowed}
    api.answers |= {f"/v1/approvals/{ID}": (200, approval), "/v1/approvals": (200, {"items": []})}
    page = (await browse(f"/review/{ID}")).text
    assert all(words in page for words in says), [words for words in says if words not in page]
    assert not any(words in page for words in says_not)
    assert "<script>window" not in page and "\u202e" not in page
    assert ('value="approve"' in page) is (status == "pending"), "a preview, or none, stands in nobody's way"


async def test_the_button_asks_the_api_and_comes_back(api: SpokenApi, browse: Browse) -> None:
    approval = {"id": ID, "status": "pending", "tool": "pay", "preview": {}}
    api.answers[f"/v1/approvals/{ID}/preview"] = 200, approval
    answer = await browse(f"/review/{ID}/preview", "POST", data={"csrf": "f-1"})
    assert (answer.status_code, answer.headers["location"]) == (303, f"/review/{ID}")
    assert [request.url.path for request in api.asked if request.method == "POST"] == [f"/v1/approvals/{ID}/preview"]
