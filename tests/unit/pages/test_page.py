"""The page of an approval: the fields of its form, differences line by line, and what a call would change."""

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
