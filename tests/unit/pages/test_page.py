"""The page of an approval: its form, differences line by line, what a call would change, its edit and its decision."""

from typing import Any

import pytest

from perdure.pages.approvals.argument_form import Shape, fields_of, read_fields
from perdure.pages.approvals.differences import DiffLine, differences
from perdure.pages.request import Form
from tests.unit.pages.conftest import Browse, SpokenApi, ok


def steps(count: int) -> dict[str, Any]:
    """Definitions of which each has the next one a hundred times."""
    made: dict[str, Any] = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 100} for n in range(count)}
    return {**made, f"d{count}": {"type": "string"}}


@pytest.mark.parametrize(
    "defs", [{"d0": {"anyOf": [{"$ref": "#/$defs/d0"}, {"type": "null"}]}}, steps(6)], ids=["itself", "ever more"]
)
def test_a_schema_that_names_itself_or_branches_without_end_is_edited_as_json(defs: dict[str, Any]) -> None:
    (field,) = fields_of({"a": "x"}, {"$defs": defs, "properties": {"a": {"$ref": "#/$defs/d0"}}})
    assert (field.shape, field.value) == (Shape.JSON, '"x"')


def test_alternatives_within_alternatives_are_still_one_choice() -> None:
    inner = {"oneOf": [{"const": "b"}, {"type": "null"}]}
    (field,) = fields_of({"a": "b"}, {"properties": {"a": {"anyOf": [{"enum": ["a"]}, inner]}}})
    assert (field.shape, field.choices, field.nullable) == (Shape.CHOICE, ('"a"', '"b"'), True)


def test_an_invalid_number_has_a_fault_at_its_field_and_nothing_ticks_itself() -> None:
    schema = {"properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}
    typed = Form([("arg.0", "abc")])
    faults = read_fields({}, schema, typed).faults
    assert list(faults) == ["a"]
    (field,) = fields_of({}, schema, typed, faults)
    assert (field.value, field.is_given, field.fault) == ("abc", False, faults["a"])


def test_a_line_that_is_not_the_last_any_more_is_no_difference_and_few_lines_are_shown_whole() -> None:
    shown = [(line.sign, line.text) for line in differences({"order": "2002"}, {"order": "2002", "cents": 5})]
    assert shown == [(" ", "{"), (" ", '  "order": "2002"'), ("+", '  "cents": 5'), (" ", "}")]


@pytest.mark.parametrize("count", [1, 5, 200, 5_000])
def test_what_is_the_same_has_no_lines_and_what_is_not_is_among_them(count: int) -> None:
    before = {f"n{number}": number for number in range(count)}
    assert differences(before, {**before}) == []
    lines = differences(before, {**before, "n0": "\u2028"})
    assert DiffLine("-", '  "n0": 0') in lines and DiffLine("+", '  "n0": "\u2028"') in lines
    assert len(lines) <= 2 * count + 6


ID = "0192aaaa-0000-7000-8000-000000000001"
HOSTILE = "<script>window.hit = 1</script>\u202egnp"
AT = "2026-01-01T10:00:00+00:00"
SEEN = {"before": {"left": 100, "to": HOSTILE}, "after": {"left": 70, "to": HOSTILE}, "fault": None, "at": AT}
CURRENT, OUTDATED = SEEN | {"is_current": True}, SEEN | {"is_current": False}
FAILED = {"fault": HOSTILE, "at": AT, "is_current": True}
PANEL, BUTTON = 'id="preview"', f'action="/review/{ID}/preview"'
Case = tuple[str, str, dict[str, Any] | None, list[str], list[str]]
CASES: list[Case] = [
    ("there is none", "pending", None, [], [PANEL, BUTTON]),
    ("it is offered", "pending", {}, [PANEL, BUTTON], ['datetime="2026']),
    ("as it is now", "pending", CURRENT, [PANEL, BUTTON, "<del>", "100", "70", "1 Jan 2026"], []),
    ("the arguments have changed", "pending", OUTDATED, [PANEL, BUTTON, "<del>"], []),
    ("it failed", "pending", FAILED, [PANEL, BUTTON, "&lt;script&gt;window"], ["<del>"]),
    ("decided", "done", CURRENT, [PANEL, "70"], [BUTTON]),
    ("decided without", "done", {}, [], [PANEL, BUTTON]),
    ("nothing changes", "pending", CURRENT | {"after": SEEN["before"]}, [PANEL, BUTTON, "100"], ["<del>"]),
]


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
async def test_a_preview_has_its_state(api: SpokenApi, browse: Browse, case: Case) -> None:
    _name, status, preview, shown, hidden = case
    allowed = ["approve", "reject"] if status == "pending" else []
    approval = {"id": ID, "status": status, "tool": "pay", "preview": preview, "allowed_decisions": allowed}
    api.answers |= {f"/v1/approvals/{ID}": ok(approval), "/v1/approvals": ok({"items": []})}
    page = (await browse(f"/review/{ID}")).text
    assert [each for each in shown if each not in page] == [each for each in hidden if each in page] == []
    assert "<script>window" not in page and "\u202e" not in page
    assert ('value="approve"' in page) is (status == "pending"), "a preview, or none, blocks no decision"
    panel = page.partition('<section aria-labelledby="preview"')[2].partition("</section>")[0]
    assert ("<strong>" in panel) is (preview == OUTDATED)


async def test_the_button_asks_the_api_and_comes_back(api: SpokenApi, browse: Browse) -> None:
    approval = {"id": ID, "status": "pending", "tool": "pay", "preview": {}}
    api.answers[f"/v1/approvals/{ID}/preview"] = ok(approval)
    answer = await browse(f"/review/{ID}/preview", "POST", data={"csrf": "f-1"})
    assert (answer.status_code, answer.headers["location"]) == (303, f"/review/{ID}")
    assert [request.url.path for request in api.asked if request.method == "POST"] == [f"/v1/approvals/{ID}/preview"]


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


async def test_an_outdated_request_shows_what_changed_and_can_be_reissued(call_api: SpokenApi, browse: Browse) -> None:
    changes = {"risk": {"before": "low", "after": "high"}, "code": [{"place": "desk:pay", "change": "changed"}],
               "parameters": {"before": {}, "after": {"type": "object"}}}  # fmt: skip
    outdated = {"status": "outdated", "outdated": "It has changed", "changes": changes, "allowed_decisions": ["reject"]}
    call_api.answers[f"/v1/approvals/{ID}"] = (200, {**CALL, **outdated})
    call_api.answers[f"/v1/approvals/{ID}/reissue"] = (201, CALL)
    page = (await browse(f"/review/{ID}")).text
    assert all(each in page for each in (f"/review/{ID}/reissue", "desk:pay", "low → high", "<ins>", 'value="reject"'))
    assert 'value="approve"' not in page
    answer = await browse(f"/review/{ID}/reissue", "POST", data={"csrf": "f-1"})
    assert (answer.status_code, answer.headers["location"]) == (303, f"/review/{ID}")


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
