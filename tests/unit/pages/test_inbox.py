"""Many decisions at once, what became of a person's, calls that a crash left unknown, and what is proposed for shared
memory, with a scripted API."""

import json
from typing import Any

import pytest
from markupsafe import escape
from pydantic import JsonValue

from perdure.core.agents.prompts import with_changed_arguments
from perdure.pages.approvals.inbox import result_message
from tests.unit.pages.conftest import Browse, SpokenApi, ok, problem

ID = "01920000-0000-7000-8000-000000000000"
CHECKPOINT: dict[str, Any] = {
    "id": ID, "kind": "checkpoint", "checkpoint": "pre_filing", "tool": "assemble", "status": "pending",
    "args": {"well": "Mitchell"}, "result": {"filing": "the <b>text that is filed"}, "digest": "d" * 64,
    "risk": "high", "agent": "rule_37", "requested_by": "ann", "allowed_decisions": ["approve", "reject"],
    "reject_reasons": ["too early"], "turn_id": "t", "version": 1, "args_schema": {}, "history": [],
}  # fmt: skip
COUNTS = {"waiting": 0, "mine": 0, "expiring": 0, "by": {}}
REFUND: dict[str, JsonValue] = {"message": "Order 1 was refunded.", "amount_cents": 100}


async def test_what_a_checkpoint_shows_is_seen_before_a_rejection_among_others(api: SpokenApi, browse: Browse) -> None:
    api.answers[f"/v1/approvals/{ID}"] = (200, CHECKPOINT)
    page = (await browse(f"/review/bulk?decision=reject&pick={ID}")).text
    assert "the &lt;b&gt;text that is filed" in page and "Mitchell" in page
    assert 'value="too early"' in page
    api.answers[f"/v1/approvals/{ID}"] = (200, {**CHECKPOINT, "reject_reasons": []})
    assert 'value="too early"' not in (await browse(f"/review/bulk?decision=reject&pick={ID}")).text


def call(number: int, **given: Any) -> dict[str, Any]:
    """One that waits, of low risk."""
    plain = {"id": f"{ID[:-1]}{number}", "kind": "approval", "checkpoint": "", "result": None, "risk": "low"}
    return {**CHECKPOINT, **plain, **given}


async def test_what_is_left_out_and_why_is_shown(api: SpokenApi, browse: Browse) -> None:
    calls = [call(1), call(2, risk="high"), {**CHECKPOINT, "risk": "low", "id": call(3)["id"]}, call(4, tool="other")]
    api.answers |= {f"/v1/approvals/{each['id']}": (200, each) for each in calls}
    picks = "".join(f"&pick={each['id']}" for each in calls)
    page = (await browse(f"/review/bulk?decision=approve{picks}")).text
    assert page.count('name="item"') == 1 and f'value="{calls[0]["id"]}:' in page
    risky = (await browse(f"/review/bulk?decision=approve&pick={calls[1]['id']}")).text
    assert "<button" not in risky.partition("<main")[2], "nothing is left to be sent"


async def test_outcomes_are_a_page_to_load_again(api: SpokenApi, browse: Browse) -> None:
    calls = [call(1, status="rejected"), call(2, status="approved")]
    api.answers |= {f"/v1/approvals/{each['id']}": (200, each) for each in calls}
    late = {"id": calls[1]["id"], "error": {"code": "already_decided", "message": "too late"}}
    api.answers["/v1/approvals/decisions"] = (200, {"items": [{"id": calls[0]["id"], "status": "rejected"}, late]})
    items = [f"{each['id']}:{each['digest']}" for each in calls]
    sent = {"csrf": "f-1", "decision": "reject", "comment": "no", "item": items}
    answer = await browse("/review/bulk/decide", "POST", data=sent)
    assert answer.status_code == 303
    assert (await browse(answer.headers["location"])).text.count('href="/review/01920000') == 2
    forged = (await browse(f"/review/bulk/done?decision=reject&of={calls[0]['id']}:<b>Call+us")).text
    assert "Call us" not in forged and "<b>" not in forged


async def test_what_is_long_written_out_must_be_opened_and_the_page_stays_light(api: SpokenApi, browse: Browse) -> None:
    hidden = {**CHECKPOINT, "kind": "approval", "checkpoint": "", "args": {"text": "a\u200b" * 2_900 + "END"}}
    api.answers |= {f"/v1/approvals/{ID}": (200, hidden), "/v1/approvals": (200, {"items": []})}
    page = (await browse(f"/review/{ID}")).text
    assert 'value="approve"' not in page and "whole=1" in page and "END" not in page
    whole = (await browse(f"/review/{ID}?whole=1")).text
    assert 'value="approve"' in whole and "END" in whole
    assert len(page.encode()) < 140_000


@pytest.mark.parametrize(("result", "shown"), [
    (json.dumps(REFUND), "Order 1 was refunded."),
    (json.dumps(with_changed_arguments({"order": "1"}, {**REFUND})), "Order 1 was refunded."),
    (json.dumps({"message": 5}), '{"message": 5}'), ('"done"', '"done"'),
    ('{"message": "cut o', '{"message": "cut o'), ("", ""),
])  # fmt: skip
def test_a_call_tells_its_sentence_for_people_or_all_that_it_answered(result: str, shown: str) -> None:
    assert result_message(result) == shown


async def test_own_decisions_have_their_outcome(api: SpokenApi, browse: Browse) -> None:
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


async def test_who_has_no_decisions_sees_the_list(api: SpokenApi, browse: Browse) -> None:
    api.answers |= {"/v1/approvals": ok({"items": []}), "/v1/approvals/counts": ok({**COUNTS, "waiting": 1})}
    pages = [(await browse("/review")).text]
    api.answers["/v1/auth/me"] = ok({"name": "ann", "roles": ["requester"], "form_token": "f-1"})
    pages += [(await browse(path)).text for path in ("/review", "/review?all=1")]
    assert [page.count('href="/review?all=1"') for page in pages] == [2, 2, 1], "a tab, and a link if there are any"
    api.asked.clear()
    await browse("/review?outdated=1")
    lists = [each.query_params for each in api.asked if each.url.path == "/v1/approvals"]
    assert [(each.get("status"), each.get("mine")) for each in lists] == [("outdated", "true")]


KEY = "k-1"
UNKNOWN: dict[str, Any] = {
    "key": KEY, "tool": "send_note", "state": "outcome_unknown", "effect": "opaque", "agent": "refunds",
    "args": {"text": "<b>hi"}, "turn_id": "0192", "first_sent_at": "2026-11-21T10:00:00Z",
    "deadline": "2026-11-21T10:01:00Z", "failure": "KeyError: '<i>' at tools/desk.py:41",
    "known": {"code": "raised_after_send", "message": "sent <b>"},
}  # fmt: skip


async def test_a_click_settles_an_unknown_call(api: SpokenApi, browse: Browse) -> None:
    api.answers |= {
        "/v1/approvals": (200, {"items": []}),
        "/v1/effects": (200, {"items": [UNKNOWN]}),
        f"/v1/effects/{KEY}/settle": (200, {"key": KEY, "outcome": "happened"}),
    }
    assert 'href="/review/unsettled"' in (await browse("/review")).text
    page = (await browse("/review/unsettled")).text
    assert (
        "&lt;b&gt;hi" in page
        and "<b>hi" not in page
        and "sent &lt;b&gt;" in page
        and "&lt;i&gt;" in page
        and 'value="did_not_happen">' in page
    )
    sent = {"csrf": "f-1", "outcome": "happened", "comment": "I looked"}
    answer = await browse("/review/unsettled/k-1", "POST", data=sent)
    assert (answer.status_code, answer.headers["location"]) == (303, "/review/unsettled")
    assert api.bodies[-1] == {"outcome": "happened", "comment": "I looked"}


async def test_what_is_not_taken_comes_back_and_what_is_too_early_has_no_button(api: SpokenApi, browse: Browse) -> None:
    api.answers["/v1/effects"] = ok({"items": [{**UNKNOWN, "key": "k", "deadline": "2126-11-21T10:01:00Z"}]})
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


PROPOSAL = "01920000-0000-7000-8000-00000000000a"
PAGE = f"/review/memory/{PROPOSAL}"
MOVED = '<p class="callout warn">'
"""That the shared document has changed since."""
ONE: dict[str, Any] = {
    "id": PROPOSAL, "store": "workspace_runbooks", "path": "deploys/a.md", "title": "Deploys <i>on", "type": "runbook",
    "risk": "low", "status": "pending", "sha256": "a" * 64, "base_sha256": None, "content": "first\n<b>second",
    "evidence_summary": "seen <u>twice", "proposed_by": "ann", "by_agent": True, "created_at": "2026-11-21T10:00:00Z",
}  # fmt: skip
DOCUMENT = {"id": "d-1", "store": "workspace_runbooks", "path": "deploys/a.md", "sha256": "b" * 64}


@pytest.fixture
def admin_api(api: SpokenApi) -> SpokenApi:
    api.answers |= {
        "/v1/auth/me": ok({"name": "rita", "roles": ["admin"], "form_token": "f-1"}),
        "/v1/approvals": ok({"items": []}),
        "/v1/memory/promotions": ok({"items": [{**ONE, "content": None}]}),
        f"/v1/memory/promotions/{PROPOSAL}": ok(ONE),
        f"/v1/memory/promotions/{PROPOSAL}/decision": ok({**ONE, "status": "approved"}),
        "/v1/memory/documents": ok({"items": []}),
    }
    return api


async def test_just_the_text_seen_is_approved(admin_api: SpokenApi, browse: Browse) -> None:
    assert '<a href="/review/memory">' in (await browse("/review")).text
    listed, shown = (await browse("/review/memory")).text, (await browse(PAGE)).text
    assert f'href="{PAGE}"' in listed
    for page in (listed, shown):
        assert "Deploys &lt;i&gt;on" in page and "seen &lt;u&gt;twice" in page and "<u>" not in page
    assert "&lt;b&gt;second" in shown and "<b>second" not in shown and MOVED not in shown
    sent = {"csrf": "f-1", "key": "k", "sha256": "a" * 64, "decision": "approve", "comment": ""}
    answer = await browse(f"{PAGE}/decision", "POST", data=sent)
    assert (answer.status_code, answer.headers["location"]) == (303, PAGE)
    assert admin_api.bodies[-1] == {"decision": "approve", "sha256": "a" * 64, "comment": ""}
    assert admin_api.asked[-1].headers["idempotency-key"] == "k"


async def test_a_proposal_is_compared_and_later_changes_are_shown(admin_api: SpokenApi, browse: Browse) -> None:
    admin_api.answers |= {
        f"/v1/memory/promotions/{PROPOSAL}": ok({**ONE, "base_sha256": "b" * 64}),
        "/v1/memory/documents": ok({"items": [{**DOCUMENT, "path": "deploys/a.md.old"}, DOCUMENT]}),
        "/v1/memory/documents/d-1": ok({**DOCUMENT, "content": "first\nold"}),
    }
    shown = (await browse(PAGE)).text
    assert "<del>- old" in shown and "<ins>+ &lt;b&gt;second" in shown and MOVED not in shown
    admin_api.answers["/v1/memory/documents/d-1"] = ok({**DOCUMENT, "sha256": "c" * 64, "content": "other"})
    assert MOVED in (await browse(PAGE)).text


async def test_a_refusal_comes_back_with_what_was_typed(admin_api: SpokenApi, browse: Browse) -> None:
    admin_api.answers[f"/v1/memory/promotions/{PROPOSAL}/decision"] = (422, problem("comment_required", "<u>why"))
    sent = {"csrf": "f-1", "decision": "reject", "sha256": "a" * 64, "comment": " <i>kept"}
    answer = await browse(f"{PAGE}/decision", "POST", data=sent)
    assert answer.status_code == 422 and "&lt;u&gt;why</p>" in answer.text and " &lt;i&gt;kept" in answer.text
    assert (await browse(f"{PAGE}/decision", "POST", data={"csrf": "f-1"})).status_code == 422
    admin_api.bodies.clear()
    stale = await browse(f"{PAGE}/decision", "POST", data={**sent, "csrf": "another"})
    assert stale.status_code == 403 and not admin_api.bodies


async def test_who_may_not_decide_has_no_buttons_and_is_not_led_there(admin_api: SpokenApi, browse: Browse) -> None:
    for name, role in (("rita", "reviewer"), ("ann", "admin")):  # Ann proposed it herself
        admin_api.answers["/v1/auth/me"] = ok({"name": name, "roles": [role], "form_token": "f-1"})
        assert "/review/memory" not in (await browse("/review")).text
        assert 'name="decision"' not in (await browse(PAGE)).text
