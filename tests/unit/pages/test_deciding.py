"""The page of a decision, its edit and its typed text, with a scripted API."""

from typing import Any

import pytest

from tests.unit.pages.conftest import Browse, SpokenApi

ID = "0192aaaa-0000-7000-8000-000000000001"
CENTS = {"anyOf": [{"type": "integer", "maximum": 7450}, {"type": "null"}]}
CALL: dict[str, Any] = {
    "id": ID, "kind": "approval", "tool": "refund", "status": "pending", "digest": "d" * 64, "risk": "high",
    "agent": "refunds", "requested_by": "ann", "turn_id": "t", "version": 1,
    "args": {"order": "2002", "cents": 100}, "allowed_decisions": ["approve", "edit", "reject", "respond"],
    "schema": {"properties": {"order": {"type": "string"}, "cents": CENTS}, "required": ["order"]},
}  # fmt: skip


@pytest.fixture
def call_api(api: SpokenApi) -> SpokenApi:
    api.answers |= {f"/v1/approvals/{ID}": (200, CALL), "/v1/approvals": (200, {"items": []})}
    return api


async def test_a_field_that_does_not_fit_says_why_beside_it(call_api: SpokenApi, browse: Browse) -> None:
    typed = {"csrf": "f-1", "digest": "d" * 64, "as": "fields", "arg.0": "2002", "arg.1": "999999"}
    page = await browse(f"/review/{ID}/edit", "POST", data=typed)
    assert page.status_code == 422
    assert '<p class="fault" id="arg.1-fault">' in page.text and 'id="arg.0-fault"' not in page.text
    whole = await browse(f"/review/{ID}/edit", "POST", data={**typed, "as": "json", "json": '{"order": 1}'})
    assert whole.status_code == 422


def vote(by: str, *, counts: bool = True) -> dict[str, Any]:
    return {"by": by, "decision": "approve", "counts": counts}


async def test_the_missing_votes_are_shown(call_api: SpokenApi, browse: Browse) -> None:
    voted = {**CALL, "quorum": 2, "reviewer_role": "reviewer", "allowed_decisions": [], "votes": [vote("rita")]}
    call_api.answers[f"/v1/approvals/{ID}"] = (200, voted)
    page = (await browse(f"/review/{ID}")).text
    assert '<p class="callout good">' in page and '<p class="callout warn">' not in page
    call_api.answers[f"/v1/approvals/{ID}"] = (200, {**voted, "votes": [vote("rita", counts=False), vote("ann")]})
    page = (await browse(f"/review/{ID}")).text
    assert '<p class="callout good">' not in page and '<p class="callout warn">' in page


async def test_who_cannot_decide_sees_less(call_api: SpokenApi, browse: Browse) -> None:
    typed = {"decision": "reject", "comment": "half an hour <b>of typing"}
    mine = await browse(f"/review/{ID}/draft", "POST", data=typed)
    assert "half an hour &lt;b&gt;of typing" in mine.text
    call_api.answers["/v1/auth/me"] = (200, {"name": "ann", "roles": ["requester"], "form_token": "f-1"})
    call_api.answers[f"/v1/approvals/{ID}"] = (200, {**CALL, "allowed_decisions": []})
    others = (await browse(f"/review/{ID}/draft", "POST", data=typed)).text
    assert "half an hour &lt;b&gt;of typing" in others
    tells_of_earlier_calls = ['<p class="quiet">' in each for each in (mine.text, others)]
    assert tells_of_earlier_calls == [True, False]


async def test_the_next_call_and_the_way_back_are_of_the_list_it_came_from(call_api: SpokenApi, browse: Browse) -> None:
    other = {**CALL, "id": ID[:-1] + "2"}
    call_api.answers["/v1/approvals"] = (200, {"items": [CALL, other]})
    assert f'href="/review/{ID}?in=all%3D1%26tool%3Drefund"' in (await browse("/review?all=1&tool=refund")).text
    within = "?in=all%3D1%26tool%3Drefund"
    page = (await browse(f"/review/{ID}{within}")).text
    assert f'href="/review/{other["id"]}{within}" rel="next"' in page and 'href="/review?all=1&amp;tool=refund"' in page
    listed = [each.query_params for each in call_api.asked if each.url.path == "/v1/approvals"][-1]
    assert (listed["tool"], listed.get("mine")) == ("refund", None)
    call_api.answers[f"/v1/approvals/{ID}/decision"] = (200, CALL)
    sent = {"csrf": "f-1", "decision": "approve", "digest": "d" * 64, "in": "all=1&tool=refund"}
    answer = await browse(f"/review/{ID}/decision", "POST", data=sent)
    assert answer.headers["location"] == f"/review/{ID}{within}"
    hostile = await browse(f"/review/{ID}/decision", "POST", data={**sent, "in": "//else.example\r\nX: 1&tool=a\r\nb"})
    assert hostile.headers["location"] == f"/review/{ID}?in=tool%3Da%250D%250Ab"


async def test_a_forms_answer_has_its_address(call_api: SpokenApi, browse: Browse) -> None:
    typed = {"csrf": "f-1", "digest": "d" * 64, "as": "fields", "arg.0": "2003", "arg.1": "100", "in": "risk=high"}
    edit = (await browse(f"/review/{ID}/edit", "POST", data=typed)).text
    assert f'data-at="/review/{ID}?in=risk%3Dhigh"' in edit
    assert "data-at" not in (await browse(f"/review/{ID}?whole=1")).text


async def test_the_history_names_the_new_holder_and_ends_in_one_full_stop(call_api: SpokenApi, browse: Browse) -> None:
    given = {"what": "approval.reassigned", "by": "rita", "at": "2026-01-01T10:00:00+00:00", "data": {"to": "bob"}}
    taken = {"by": "ann", "comment": "not <b>needed"}
    over = {**CALL, "status": "cancelled", "withdrawal": taken, "allowed_decisions": [], "history": [given]}
    for status in ("cancelled", "withdrawn"):
        call_api.answers[f"/v1/approvals/{ID}"] = (200, {**over, "status": status})
        page = (await browse(f"/review/{ID}")).text
        said = page.partition("<p><strong>")[2].partition("</p>")[0]
        assert ".</strong>" not in said and "not &lt;b&gt;needed" in said
        assert "bob" in page and "rita" in page
