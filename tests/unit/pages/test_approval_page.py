"""What the page of an approval makes of its arguments: the fields of a form, and differences line by line."""

from typing import Any

import pytest

from perdure.pages.approvals.page import Line, Shape, differences, fields_of, read_fields
from perdure.pages.request import Form


def steps(count: int) -> dict[str, Any]:
    """Definitions of which each has the next one a hundred times."""
    made: dict[str, Any] = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 100} for n in range(count)}
    return {**made, f"d{count}": {"type": "string"}}


@pytest.mark.parametrize(
    "defs",
    [{"d0": {"anyOf": [{"$ref": "#/$defs/d0"}, {"type": "null"}]}}, steps(6)],
    ids=["itself", "ever more"],
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
    assert (field.value, field.given, field.fault) == ("abc", False, faults["a"])


def test_a_line_that_is_not_the_last_any_more_is_no_difference_and_few_lines_are_shown_whole() -> None:
    shown = [(line.sign, line.text) for line in differences({"order": "2002"}, {"order": "2002", "cents": 5})]
    assert shown == [(" ", "{"), (" ", '  "order": "2002"'), ("+", '  "cents": 5'), (" ", "}")]


@pytest.mark.parametrize("count", [1, 5, 200, 5_000])
def test_what_is_the_same_has_no_lines_and_what_is_not_is_among_them(count: int) -> None:
    before = {f"n{number}": number for number in range(count)}
    assert differences(before, {**before}) == []
    lines = differences(before, {**before, "n0": "\u2028"})
    assert Line("-", '  "n0": 0') in lines and Line("+", '  "n0": "\u2028"') in lines
    assert len(lines) <= 2 * count + 6
