"""The page of calls that a crash left unknown."""

from typing import Any

from tests.unit.pages.conftest import Browse, SpokenApi, ok, problem

KEY = "k-1"
CALL: dict[str, Any] = {
    "key": KEY, "tool": "send_note", "state": "outcome_unknown", "effect": "opaque", "agent": "refunds",
    "args": {"text": "<b>hi"}, "turn_id": "0192", "first_sent_at": "2026-11-21T10:00:00Z",
    "deadline": "2026-11-21T10:01:00Z",
}  # fmt: skip


async def test_a_click_settles_an_unknown_call(api: SpokenApi, browse: Browse) -> None:
    api.answers |= {
        "/v1/approvals": (200, {"items": []}),
        "/v1/effects": (200, {"items": [CALL]}),
        f"/v1/effects/{KEY}/settle": (200, {"key": KEY, "outcome": "happened"}),
    }
    assert 'href="/review/unsettled"' in (await browse("/review")).text
    page = (await browse("/review/unsettled")).text
    assert "&lt;b&gt;hi" in page and "<b>hi" not in page and 'value="did_not_happen">' in page
    sent = {"csrf": "f-1", "outcome": "happened", "comment": "I looked"}
    answer = await browse("/review/unsettled/k-1", "POST", data=sent)
    assert (answer.status_code, answer.headers["location"]) == (303, "/review/unsettled")
    assert api.bodies[-1] == {"outcome": "happened", "comment": "I looked"}


async def test_what_is_not_taken_comes_back_and_what_is_too_early_has_no_button(api: SpokenApi, browse: Browse) -> None:
    api.answers["/v1/effects"] = ok({"items": [{**CALL, "key": "k", "deadline": "2126-11-21T10:01:00Z"}]})
    page = (await browse("/review/unsettled")).text
    assert 'value="did_not_happen" disabled' in page and 'datetime="2126-11-21T10:01:00' in page
    api.answers["/v1/effects/k/settle"] = (403, problem("own_request", "<u>no"))
    sent = {"csrf": "f-1", "outcome": "happened", "comment": "I <i>know"}
    answer = await browse("/review/unsettled/k", "POST", data=sent)
    assert answer.status_code == 403
    assert "&lt;u&gt;no</p>" in answer.text and "I &lt;i&gt;know</textarea>" in answer.text
    assert (await browse("/review/unsettled/k", "POST", data={"csrf": "f-1"})).status_code == 422
    api.answers["/v1/effects"] = ok({"items": []})
    gone = await browse("/review/unsettled/k", "POST", data=sent)
    assert "&lt;u&gt;no</p>" in gone.text and "<u>no" not in gone.text and "<textarea" not in gone.text
