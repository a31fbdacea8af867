"""The pages of what is proposed for shared memory."""

from typing import Any

import pytest

from tests.unit.pages.conftest import Browse, SpokenApi, ok, problem

ID = "01920000-0000-7000-8000-00000000000a"
PAGE = f"/review/memory/{ID}"
MOVED = '<p class="callout warn">'
"""That the shared document has changed since."""
ONE: dict[str, Any] = {
    "id": ID, "store": "workspace_runbooks", "path": "deploys/a.md", "title": "Deploys <i>on", "type": "runbook",
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
        f"/v1/memory/promotions/{ID}": ok(ONE),
        f"/v1/memory/promotions/{ID}/decision": ok({**ONE, "status": "approved"}),
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
        f"/v1/memory/promotions/{ID}": ok({**ONE, "base_sha256": "b" * 64}),
        "/v1/memory/documents": ok({"items": [{**DOCUMENT, "path": "deploys/a.md.old"}, DOCUMENT]}),
        "/v1/memory/documents/d-1": ok({**DOCUMENT, "content": "first\nold"}),
    }
    shown = (await browse(PAGE)).text
    assert "<del>- old" in shown and "<ins>+ &lt;b&gt;second" in shown and MOVED not in shown
    admin_api.answers["/v1/memory/documents/d-1"] = ok({**DOCUMENT, "sha256": "c" * 64, "content": "other"})
    assert MOVED in (await browse(PAGE)).text


async def test_a_refusal_comes_back_with_what_was_typed(admin_api: SpokenApi, browse: Browse) -> None:
    admin_api.answers[f"/v1/memory/promotions/{ID}/decision"] = (422, problem("comment_required", "<u>why"))
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
