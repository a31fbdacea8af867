"""What surrounds every page: who answers, with which headers, with whose credentials, and what stands for a failure."""

import re

import pytest

from perdure.pages.app import create_pages, is_of_api
from perdure.pages.render import FOLDER, asset, entries
from tests.unit.pages.conftest import Browse, Said, SpokenApi, problem

EMPTY: Said = (200, {"items": [], "next": None})


@pytest.mark.parametrize(
    ("path", "is_its"),
    [
        ("/v1/approvals", True),
        ("/v1", True),
        ("/healthz", True),
        ("/docs", False),
        ("/openapi.json", True),
        ("/", False),
        ("/review", False),
        ("/v12", False),
        ("/documents", False),
        ("/assets/pages.css", False),
        ("/sign-in", False),
    ],
)
def test_a_path_is_the_apis_or_a_pages(path: str, is_its: bool) -> None:
    assert is_of_api("GET", path) is is_its


def test_what_begins_or_ends_a_session_is_the_apis() -> None:
    assert is_of_api("POST", "/sign-in") and is_of_api("POST", "/sign-out")


async def test_a_page_asks_the_api_with_what_the_browser_brought_and_nothing_else(
    api: SpokenApi, browse: Browse
) -> None:
    api.answers["/v1/approvals"] = EMPTY
    brought = {"Cookie": "session=s", "Authorization": "Bearer t", "X-Forwarded-For": "9.9.9.9", "X-Mine": "1"}
    answer = await browse("/review", headers=brought)
    assert answer.status_code == 200
    asked = api.asked[0].headers
    assert (asked["cookie"], asked["authorization"], asked["host"]) == ("session=s", "Bearer t", "perdure.example")
    assert "x-mine" not in asked
    assert "x-forwarded-for" not in asked


async def test_every_answer_forbids_what_is_not_our_own(api: SpokenApi, browse: Browse) -> None:
    api.answers["/v1/approvals"] = EMPTY
    for path in ("/review", "/nowhere", asset("pages.css")):
        headers = (await browse(path)).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
    assert (await browse("/review")).headers["cache-control"] == "no-store"


async def test_files_are_kept_by_browsers_only_under_the_digest_of_their_bytes(browse: Browse) -> None:
    assert "immutable" in (await browse(asset("pages.js"))).headers["cache-control"]
    assert (await browse("/assets/pages.js")).headers["cache-control"] == "no-store"
    assert (await browse("/assets/../pages.py")).status_code == 404


async def test_a_page_names_no_other_host_and_no_script_of_its_own(api: SpokenApi, browse: Browse) -> None:
    api.answers["/v1/approvals"] = EMPTY
    text = (await browse("/review")).text
    assert not re.findall(r"""(?:src|href|action)=["']?(?:https?:)?//""", text)
    assert not re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text)


def test_what_is_served_beside_a_page_is_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 120_000


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (403, "role_required", "not yours"),
        (404, "approval_not_found", "nothing here"),
        (429, "too_many", "Too much"),
        (503, "unavailable", "away"),
        (500, "internal", "went wrong"),
    ],
)
async def test_a_refusal_of_the_api_is_a_page_in_words_with_its_status(
    api: SpokenApi, browse: Browse, status: int, code: str, says: str
) -> None:
    api.answers["/v1/approvals"] = (status, problem(code, "because <b>of</b> it"))
    answer = await browse("/review")
    assert answer.status_code == status
    assert says in answer.text and "because &lt;b&gt;of&lt;/b&gt; it" in answer.text and code in answer.text
    assert "rita" in answer.text and "Sign out" in answer.text, "who is signed in stays so"


async def test_a_script_that_asks_for_a_part_is_told_in_a_line(api: SpokenApi, browse: Browse) -> None:
    api.answers["/v1/approvals"] = (503, problem("unavailable", "a part is away"))
    answer = await browse("/review", headers={"HX-Request": "true"})
    assert answer.status_code == 503
    assert "<html" not in answer.text and "a part is away" in answer.text


async def test_an_answer_that_is_none_of_the_apis_says_nothing_of_our_inside(api: SpokenApi, browse: Browse) -> None:
    api.answers["/v1/approvals"] = (200, {"surprise": 1})
    answer = await browse("/review")
    assert answer.status_code >= 500 or "surprise" not in answer.text
    assert "Traceback" not in answer.text and ".py" not in answer.text


async def test_an_unknown_address_and_a_wrong_method_are_pages_too(browse: Browse) -> None:
    assert (await browse("/nowhere")).status_code == 404
    assert (await browse("/review", "DELETE")).status_code == 405


async def test_the_home_page_leads_to_the_inbox(browse: Browse) -> None:
    answer = await browse("/")
    assert (answer.status_code, answer.headers["location"]) == (303, "/review")


def test_where_one_is_is_one_entry_the_longest_that_fits() -> None:
    assert [entry.path for entry in entries("/review/123") if entry.is_here] == ["/review"]
    assert not [entry for entry in entries("/reviewed") if entry.is_here]


def test_no_page_is_described_to_programs() -> None:
    assert create_pages(SpokenApi().app()).openapi_url is None


ANSWER = "/chat/01920000-0000-7000-8000-000000000000/turns/01920000-0000-7000-8000-000000000001/answers/q-1"


@pytest.mark.parametrize("path", ["/review/bulk/decide", ANSWER, "/chat"])
async def test_whatever_was_typed_into_a_form_as_the_session_ended_can_be_sent_afterwards(
    api: SpokenApi, browse: Browse, path: str
) -> None:
    typed = {"csrf": "of before", "key": "k-1", "comment": "none <b>of these", "item": "a:1"}
    me = api.answers["/v1/auth/me"]
    api.answers["/v1/auth/me"] = (401, problem("session_over", "sign in"))
    ended = await browse(path, "POST", data=typed)
    assert ended.status_code == 401 and "Your session has ended" in ended.text
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


@pytest.mark.parametrize("status", [429, 503])
async def test_what_was_typed_is_kept_where_the_service_has_no_time_for_it(
    api: SpokenApi, browse: Browse, status: int
) -> None:
    api.answers["/v1/auth/me"] = (status, problem("busy", "not now"))
    path = "/review/01920000-0000-7000-8000-000000000000/decision"
    answer = await browse(path, "POST", data={"csrf": "f-1", "key": "k-1", "comment": "half an hour of typing"})
    assert answer.status_code == status and "not now" in answer.text
    assert f'action="{path}"' in answer.text and 'value="half an hour of typing"' in answer.text
    assert 'name="csrf" value="f-1"' in answer.text and 'name="key" value="k-1"' in answer.text


async def test_a_person_who_signs_in_comes_back_to_the_very_page(api: SpokenApi, browse: Browse) -> None:
    api.answers["/v1/auth/me"] = (401, problem("session_over", "sign in"))
    answer = await browse("/review?risk=high&tool=pay")
    assert answer.headers["location"] == "/sign-in?next=%2Freview%3Frisk%3Dhigh%26tool%3Dpay"
    assert (await browse("/review?cursor=" + "x" * 600)).headers["location"] == "/sign-in?next=%2Freview"


async def test_a_sign_in_that_is_turned_away_unread_leads_back_to_the_form_in_words(
    api: SpokenApi, browse: Browse
) -> None:
    api.answers |= {"/sign-in": (429, problem("rate_limited", "slow down")), "/v1/auth/ways": (200, {"oidc": False})}
    head = {"Accept": "text/html", "Referer": "http://perdure.example/sign-in?next=%2Freview%2Fmine&failed=x"}
    assert (await browse("/sign-in", "POST")).status_code == 429, "a program is told as ever"
    answer = await browse("/sign-in", "POST", headers=head)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/sign-in?failed=rate_limited&next=%2Freview%2Fmine"
    page = (await browse("/sign-in?failed=rate_limited&next=%2Freview%2Fmine&after=15")).text
    assert "Too many requests came from your address. Try again in 15 s." in page and 'value="/review/mine"' in page
    api.answers["/sign-in"] = (200, {})
    assert (await browse("/sign-in", "POST", headers=head)).status_code == 200


async def test_an_invitation_has_a_form_that_a_link_fills_in(api: SpokenApi, browse: Browse) -> None:
    api.answers["/v1/auth/ways"] = (200, {"oidc": False})
    page = (await browse("/sign-in?invitation=perdure_invitation_x&name=cleo")).text
    assert 'name="invitation" value="perdure_invitation_x"' in page and 'name="name" value="cleo"' in page
    assert "Set the password and sign in" in (await browse("/sign-in")).text


async def test_the_setup_code_has_a_form_until_the_first_person_has_registered(api: SpokenApi, browse: Browse) -> None:
    api.answers["/v1/auth/ways"] = (200, {"oidc": False, "setup_code": True})
    page = (await browse("/sign-in")).text
    assert 'name="setup_code"' in page and "Setup code" in page and "<details open>" not in page
    for failed in ("setup_code_invalid", "setup_code_needed", "password_weak", "registration_invalid"):
        again = (await browse(f"/sign-in?failed={failed}&name=boss")).text
        assert "<details open>" in again and 'name="name" value="boss"' in again and 'role="alert"' in again, failed
    assert "with the same settings" in (await browse("/sign-in?failed=setup_code_invalid")).text
    assert (
        "Too many wrong passwords. Try again in 8 s." in (await browse("/sign-in?failed=sign_in_delayed&after=8")).text
    )
    api.answers["/v1/auth/ways"] = (200, {"oidc": False, "setup_code": False})
    assert "setup_code" not in (await browse("/sign-in")).text
