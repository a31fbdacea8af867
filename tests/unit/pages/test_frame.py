"""What surrounds every page: who answers, with which headers, with whose credentials, and what stands for a failure."""

import re

import pytest

from perdure.pages.app import create_pages, is_api_request
from perdure.pages.render import STATIC_FOLDER, asset_url, navigation_entries
from tests.unit.pages.conftest import Browse, SpokenApi, ok, problem

NONE = ok({"items": [], "next": None})
APIS = ["GET /v1/approvals", "GET /v1", "GET /healthz", "GET /openapi.json", "POST /sign-in", "POST /sign-out"]
PAGES = ["GET /docs", "GET /", "GET /review", "GET /v12", "GET /documents", "GET /assets/pages.css", "GET /sign-in"]
ANSWER = "/chat/01920000-0000-7000-8000-000000000000/turns/01920000-0000-7000-8000-000000000001/answers/q-1"


@pytest.mark.parametrize(("asked", "is_its"), [*((each, True) for each in APIS), *((each, False) for each in PAGES)])
def test_a_path_is_the_apis_or_a_pages(asked: str, is_its: bool) -> None:
    assert is_api_request(*asked.split()) is is_its


async def test_a_page_asks_the_api_with_what_the_browser_brought_and_no_more(api: SpokenApi, browse: Browse) -> None:
    api.answers["/v1/approvals"] = NONE
    brought = {"Cookie": "session=s", "Authorization": "Bearer t", "X-Forwarded-For": "9.9.9.9", "X-Mine": "1"}
    assert (await browse("/review", headers=brought)).status_code == 200
    asked = api.asked[0].headers
    assert (asked["cookie"], asked["authorization"], asked["host"]) == ("session=s", "Bearer t", "perdure.example")
    assert not {"x-mine", "x-forwarded-for"} & {*asked}


async def test_every_answer_forbids_what_is_not_our_own(api: SpokenApi, browse: Browse) -> None:
    api.answers["/v1/approvals"] = NONE
    for path in ("/review", "/nowhere", asset_url("pages.css")):
        headers = (await browse(path)).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
    answer = await browse("/review")
    assert answer.headers["cache-control"] == "no-store"
    assert not re.findall(r"""(?:src|href|action)=["']?(?:https?:)?//""", answer.text), "another host"
    assert not re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", answer.text)


async def test_files_are_small_and_kept_by_browsers_only_under_the_digest_of_their_bytes(browse: Browse) -> None:
    assert "immutable" in (await browse(asset_url("pages.js"))).headers["cache-control"]
    assert (await browse("/assets/pages.js")).headers["cache-control"] == "no-store"
    assert (await browse("/assets/../pages.py")).status_code == 404
    assert sum(path.stat().st_size for path in STATIC_FOLDER.iterdir()) < 120_000


async def test_a_refusal_is_a_page_with_its_status(api: SpokenApi, browse: Browse) -> None:
    codes = {403: "role_required", 404: "approval_not_found", 429: "too_many", 503: "unavailable", 500: "internal"}
    for status, code in codes.items():
        api.answers["/v1/approvals"] = (status, problem(code, "because <b>of</b> it"))
        answer = await browse("/review")
        assert answer.status_code == status
        assert "because &lt;b&gt;of&lt;/b&gt; it" in answer.text and "<b>of" not in answer.text and code in answer.text
        assert "rita" in answer.text and 'action="/sign-out"' in answer.text, "who is signed in stays so"
    part = await browse("/review", headers={"HX-Request": "true"})
    assert part.status_code == 500 and "<html" not in part.text and "because &lt;b&gt;of" in part.text


async def test_an_error_or_unknown_address_is_a_page_without_internals(api: SpokenApi, browse: Browse) -> None:
    api.answers["/v1/approvals"] = ok({"surprise": 1})
    answer = await browse("/review")
    assert answer.status_code >= 500 or "surprise" not in answer.text
    assert "Traceback" not in answer.text and ".py" not in answer.text
    assert (await browse("/nowhere")).status_code == 404
    assert (await browse("/review", "DELETE")).status_code == 405


async def test_a_person_begins_where_the_own_work_is(api: SpokenApi, browse: Browse) -> None:
    for role, leads_to in (("reviewer", "/review"), ("admin", "/review"), ("requester", "/chat")):
        api.answers["/v1/auth/me"] = ok({"name": "rita", "roles": [role], "form_token": "f-1"})
        answer = await browse("/")
        assert (answer.status_code, answer.headers["location"]) == (303, leads_to)


def test_where_one_is_is_one_entry_the_longest_that_fits_and_no_page_is_described_to_programs() -> None:
    assert [entry.path for entry in navigation_entries("/review/123") if entry.is_here] == ["/review"]
    assert not [entry for entry in navigation_entries("/reviewed") if entry.is_here]
    assert create_pages(SpokenApi().app()).openapi_url is None


async def test_what_was_typed_outlives_the_session(api: SpokenApi, browse: Browse) -> None:
    typed = {"csrf": "of before", "key": "k-1", "comment": "none <b>of these", "item": "a:1"}
    me = api.answers["/v1/auth/me"]
    for path in ("/review/bulk/decide", ANSWER, "/chat"):
        api.answers["/v1/auth/me"] = (401, problem("session_over", "sign in"))
        ended = await browse(path, "POST", data=typed)
        assert ended.status_code == 401 and 'href="/sign-in"' in ended.text
        api.answers["/v1/auth/me"] = me
        stale = await browse(path, "POST", data=typed)
        assert stale.status_code == 403 and stale.headers["perdure-form"] == "stale"
        for page in (ended, stale):
            assert 'action="/kept"' in page.text and f'name="kept_for" value="{path}"' in page.text
        kept = await browse("/kept", "POST", data={**typed, "kept_for": path})
        assert kept.status_code == 200 and f'action="{path}"' in kept.text and 'name="csrf" value="f-1"' in kept.text
        for name in ("key", "comment", "item"):
            assert f'name="{name}" value="{typed[name].replace("<b>", "&lt;b&gt;")}"' in kept.text
        assert kept.text.count('name="csrf"') == 2, "one signs out"
    elsewhere = await browse("/kept", "POST", data={**typed, "kept_for": "//elsewhere.example"})
    assert elsewhere.status_code == 422 and "elsewhere" not in elsewhere.text


@pytest.mark.parametrize("verb", ["decision", "draft", "edit", "claim"])
async def test_a_form_of_another_site_does_nothing(api: SpokenApi, browse: Browse, verb: str) -> None:
    path, sent = f"/review/01920000-0000-7000-8000-000000000000/{verb}", {"csrf": "f-1", "decision": "approve"}
    foreign = await browse(path, "POST", data=sent, headers={"Origin": "https://elsewhere.example"})
    assert foreign.status_code == 403
    assert verb == "draft" or (await browse(path, "POST", data={"decision": "approve"})).status_code == 403
    assert [request for request in api.asked if request.method == "POST"] == []


@pytest.mark.parametrize("status", [429, 503])
async def test_what_was_typed_is_kept_by_a_service_without_time(api: SpokenApi, browse: Browse, status: int) -> None:
    api.answers["/v1/auth/me"] = (status, problem("busy", "not now"))
    path = "/review/01920000-0000-7000-8000-000000000000/decision"
    answer = await browse(path, "POST", data={"csrf": "f-1", "key": "k-1", "comment": "half an hour of typing"})
    assert answer.status_code == status and f'action="{path}"' in answer.text
    for name, value in (("csrf", "f-1"), ("key", "k-1"), ("comment", "half an hour of typing")):
        assert f'name="{name}" value="{value}"' in answer.text


async def test_a_person_who_signs_in_comes_back_to_the_very_page(api: SpokenApi, browse: Browse) -> None:
    api.answers["/v1/auth/me"] = (401, problem("session_over", "sign in"))
    answer = await browse("/review?risk=high&tool=pay")
    assert answer.headers["location"] == "/sign-in?next=%2Freview%3Frisk%3Dhigh%26tool%3Dpay"
    assert (await browse("/review?cursor=" + "x" * 600)).headers["location"] == "/sign-in?next=%2Freview"


async def test_a_sign_in_that_is_turned_away_unread_leads_back_to_the_form(api: SpokenApi, browse: Browse) -> None:
    api.answers |= {"/sign-in": (429, problem("rate_limited", "slow down")), "/v1/auth/ways": ok({"oidc": False})}
    head = {"Accept": "text/html", "Referer": "http://perdure.example/sign-in?next=%2Freview%2Fmine&failed=x"}
    assert (await browse("/sign-in", "POST")).status_code == 429, "a program is told as ever"
    answer = await browse("/sign-in", "POST", headers=head)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/sign-in?failed=rate_limited&next=%2Freview%2Fmine"
    for failed, seconds in (("rate_limited", 15), ("sign_in_delayed", 8)):
        page = (await browse(f"/sign-in?failed={failed}&next=%2Freview%2Fmine&after={seconds}")).text
        assert f"{seconds} s" in page and 'value="/review/mine"' in page
    api.answers["/sign-in"] = ok({})
    assert (await browse("/sign-in", "POST", headers=head)).status_code == 200


async def test_a_setup_code_has_a_form_until_used(api: SpokenApi, browse: Browse) -> None:
    api.answers["/v1/auth/ways"] = ok({"oidc": False, "setup_code": True})
    page = (await browse("/sign-in")).text
    assert 'name="setup_code"' in page and 'name="invitation"' in page and "<details open>" not in page
    said = []
    of_the_form = ("setup_code_invalid", "setup_code_needed", "password_weak", "registration_invalid")
    for failed in (
        *of_the_form, "sign_in_failed", "rate_limited&after=15", "sign_in_delayed&after=8", "something_else",
    ):  # fmt: skip
        again = (await browse(f"/sign-in?failed={failed}&name=boss")).text
        assert ("<details open>" in again and 'name="name" value="boss"' in again) is (failed in of_the_form), failed
        said += re.findall(r'<p class="problem" role="alert">(.+?)</p>', again)
    assert len({*said}) == 8, "each has its own explanation"
    assert "<details open>" in (await browse("/sign-in?failed=too_many_tries&after=60")).text
    ends = [{"reason": each, "at": "2026-11-21T12:00:00Z"} for each in ("used", "administrator_exists", "expired")]
    shown = {}
    for ended in (None, {"reason": "missing", "at": None}, *ends):
        api.answers["/v1/auth/ways"] = ok({"oidc": False, "setup_code": False, "setup_code_ended": ended})
        shown[str(ended)] = [
            (await browse(f"/sign-in{query}")).text for query in ("", "?failed=setup_code_invalid", "?invitation=x")
        ]
        assert ("2026-11-21T12:00:00" in shown[str(ended)][0]) is (ended in ends)
        assert not [each for each in shown[str(ended)] if 'name="setup_code"' in each]
    assert len({pages[0] for pages in shown.values()}) == 5, "each end has its own reason"
    assert len({pages[2] for pages in shown.values()}) == 1, "an invitation needs no code"
    api.answers["/v1/auth/ways"] = ok({"oidc": False, "setup_code": False})
    assert "setup_code" not in (await browse("/sign-in")).text
    link = (await browse("/sign-in?invitation=perdure_invitation_x&name=cleo")).text
    assert 'name="invitation" value="perdure_invitation_x"' in link and 'name="name" value="cleo"' in link
