"""What fits a schema, and how a schema is outlined."""

import time
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import JsonValue

from perdure.core.calls.arguments import parse_arguments
from perdure.core.json_schema import PATTERN_SECONDS, answer_fault, kind, outline, schema_fault

SLOW = "^(a|aa)+$"
HOSTILE = "a" * 60 + "b"


def of(**properties: JsonValue) -> dict[str, JsonValue]:
    return {"type": "object", "properties": properties}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patterns get a fifth of their time."""
    monkeypatch.setattr("perdure.core.json_schema.PATTERN_SECONDS", 0.2)


@pytest.mark.timed
@pytest.mark.parametrize(
    ("schema", "args"),
    [
        (of(s={"type": "string", "pattern": SLOW}), {"s": HOSTILE}),
        (of(s={"type": "array", "items": {"pattern": SLOW}}), {"s": [HOSTILE] * 50}),
        ({"type": "object", "patternProperties": {SLOW: {}}}, {HOSTILE: 1}),
        ({"type": "object", "patternProperties": {SLOW: {}}, "additionalProperties": False}, {HOSTILE: 1}),
        ({"type": "object", "propertyNames": {"pattern": SLOW}}, {HOSTILE: 1}),
        (
            {"$defs": {"s": {"pattern": SLOW}}, "type": "object", "properties": {"s": {"$ref": "#/$defs/s"}}},
            {"s": HOSTILE},
        ),
    ],
)
def test_a_pattern_that_backtracks_for_ever_is_a_fault_within_its_time(
    schema: dict[str, JsonValue], args: dict[str, JsonValue]
) -> None:
    began = time.monotonic()
    fault = schema_fault(args, schema)
    assert fault is not None and "in time" in fault
    assert time.monotonic() - began < PATTERN_SECONDS + 4  # unbounded it takes minutes; other programs may be busy


@pytest.mark.timed
@pytest.mark.parametrize(
    ("schema", "answer", "fault"),
    [
        (of(n={"type": "integer"}), {"n": 1}, None),
        (of(n={"type": "integer"}), {"n": "one"}, "n: 'one' is not of type 'integer'"),
        ({"type": "object", "required": ["n"]}, {}, "'n' is a required property"),
        (of(n={"$ref": "https://nowhere.example/n.json"}), {"n": 1}, None),
        (of(n={"$ref": "#/properties/n"}), {"n": 1}, None),
        (of(s={"pattern": SLOW}), {"s": HOSTILE}, None),
        (of(s={"pattern": "("}), {"s": "x"}, None),
        ({**of(n={"type": "integer"}), "unevaluatedProperties": False}, {"n": 1}, None),
        (
            {**of(n={"type": "integer"}), "unevaluatedProperties": False},
            {"n": "one"},
            "n: 'one' is not of type 'integer'",
        ),
    ],
)
def test_an_answer_is_held_against_its_makers_schema_as_far_as_that_can_be_used(
    schema: dict[str, JsonValue], answer: dict[str, JsonValue], fault: str | None
) -> None:
    began = time.monotonic()
    assert answer_fault(answer, schema) == fault
    assert time.monotonic() - began < PATTERN_SECONDS + 4


def test_distinct_items_are_told_in_linear_time() -> None:
    items: list[JsonValue] = [{"n": number} for number in range(20_000)]
    schema = of(s={"type": "array", "uniqueItems": True})
    began = time.process_time()
    assert schema_fault({"s": items}, schema) is None
    assert schema_fault({"s": [*items, {"n": 7}]}, schema) == "s: has non-unique elements"
    assert time.process_time() - began < 2


CASES: list[tuple[dict[str, JsonValue], dict[str, JsonValue]]] = [
    (of(s={"pattern": "^[0-9]{2}-x$"}), {"s": "12-x"}),
    (of(s={"pattern": "^[0-9]{2}-x$"}), {"s": "1-x"}),
    (of(s={"pattern": "^[0-9]"}), {"s": 12}),
    ({**of(a={}), "additionalProperties": False}, {"a": 1, "b": 2}),
    ({**of(a={}), "additionalProperties": False}, {"a": 1, "b": 2, "c": 3}),
    ({**of(a={}), "additionalProperties": {"type": "string"}}, {"a": 1, "b": 2}),
    ({"type": "object", "patternProperties": {"^n_": {"type": "integer"}}}, {"n_a": "x", "b": "y"}),
    ({"patternProperties": {"^n_": {}}, "additionalProperties": False}, {"n_a": 1}),
]


@pytest.mark.parametrize(("schema", "args"), CASES)
def test_what_fits_and_what_is_said_otherwise_is_as_jsonschema_has_it(
    schema: dict[str, JsonValue], args: dict[str, JsonValue]
) -> None:
    theirs = [error.message for error in Draft202012Validator(schema).iter_errors(args)]
    fault = schema_fault(args, schema)
    assert (fault is None) == (not theirs)
    assert all(message in (fault or "") for message in theirs)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("^[a-z0-9_]+$", "x\n"),
        ("^(?:a|x$)", "x\n"),
        (r"^x\$$", "x$\n"),
        (r"^[$\]]$", "$\n"),
        ("^[]$]$", "$\n"),
        ("^[[:alpha:]$]$", "$\n"),
        (r"^\(?mx$", "mx\n"),
        (r"^x\\$", "x\\\n"),
    ],
)
def test_the_end_is_the_very_end_as_it_is_for_the_tool_itself(pattern: str, text: str) -> None:
    schema = of(s={"pattern": pattern}, names={"patternProperties": {pattern: False}})
    assert "does not match" in (schema_fault({"s": text}, schema) or "")
    assert schema_fault({"s": text[:-1], "names": {text: 1}}, schema) is None
    assert schema_fault({"names": {text[:-1]: 1}}, schema) is not None
    assert schema_fault({"s": text}, of(s={"pattern": f"(?m){pattern}"})) is None


def branching(word: str, leaf: JsonValue) -> dict[str, JsonValue]:
    """A small schema in which thirty steps lead to a thousand million leaves."""
    steps: dict[str, JsonValue] = {
        f"d{step}": {word: [{"$ref": f"#/$defs/d{step + 1}"}, {"$ref": f"#/$defs/d{step + 1}"}]} for step in range(30)
    }
    return {"$defs": {**steps, "d30": leaf}, **of(s={"$ref": "#/$defs/d0"})}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (branching("anyOf", {"type": "integer"}), "branches so often"),
        (branching("oneOf", {"type": "integer"}), "branches so often"),
        (branching("allOf", {"type": "string"}), "branches so often"),
        ({"type": "object", "$ref": "#"}, "cannot be used"),
        ({"type": "object", "$dynamicRef": "#"}, "cannot be used"),
    ],
    ids=["any", "one", "all", "itself", "itself, dynamically"],
)
def test_a_schema_that_nobody_can_get_through_is_a_fault_and_no_error(schema: dict[str, JsonValue], why: str) -> None:
    began = time.process_time()
    assert why in str(schema_fault({"s": "x"}, schema))
    assert time.process_time() - began < 10  # unbounded the first three would take for a day
    assert parse_arguments('{"s": "x"}', schema).fault, "nor is it one of the turn whose model made the call"


def test_a_large_value_that_fits_is_gone_through() -> None:
    rows: list[JsonValue] = [{"n": number, "s": "x"} for number in range(10_000)]
    row: JsonValue = {**of(n={"type": "integer", "minimum": 0}, s={"enum": ["x", "y"]}), "required": ["n", "s"]}
    assert schema_fault({"rows": rows}, of(rows={"type": "array", "items": row})) is None


def test_what_cannot_be_checked_does_not_fit() -> None:
    assert "cannot be read" in str(schema_fault({"s": "x"}, of(s={"pattern": "(?P<"})))
    assert "not checked here" in str(schema_fault({"s": "x"}, {"unevaluatedProperties": False}))
    assert "outside itself" in str(schema_fault({}, {"$ref": "https://example.org/schema"}))


def test_of_alternatives_the_fault_is_told_by_the_one_that_is_of_the_values_type() -> None:
    cents: JsonValue = {"anyOf": [{"type": "integer", "maximum": 7450}, {"type": "null"}]}
    either: JsonValue = {"anyOf": [{"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 20}]}
    within: JsonValue = {"oneOf": [cents, {"type": "string"}]}
    assert schema_fault({"s": 999_999}, of(s=cents)) == "s: 999999 is greater than the maximum of 7450"
    assert schema_fault({"s": 999_999}, of(s=within)) == "s: 999999 is greater than the maximum of 7450"
    assert schema_fault({"s": "x"}, of(s=cents)) == "s: 'x' is not valid under any of the given schemas"
    assert schema_fault({"s": 9}, of(s=either)) == "s: 9 is not valid under any of the given schemas"


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 9}, "integer (at least 1, at most 9)"),
        ({"enum": ["a", 2, None]}, 'one of "a", 2, null'),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string or null"),
        ({"type": ["string", "null"]}, "string or null"),
        ({"type": "array", "items": {"type": "number"}, "maxItems": 3}, "list of number (3 at most)"),
        ({"$ref": "#/$defs/Place"}, "object with street, town"),
        ({"type": "array", "items": {"$ref": "#/$defs/Tree"}}, "list of list of list of list of list of list of list "),
        ({"const": 3}, "3"),
        ({"$ref": "#/nowhere"}, "anything"),
        ({}, "anything"),
        (True, "anything"),
    ],
)
def test_a_field_is_told_in_words(field: Any, words: str) -> None:
    place = {"type": "object", "properties": {"street": {}, "town": {}}}
    tree = {"type": "array", "items": {"$ref": "#/$defs/Tree"}}
    assert kind(field, {"$defs": {"Place": place, "Tree": tree}}).startswith(words)


def test_alternatives_without_end_are_told_in_no_time() -> None:
    alternatives = {"anyOf": [{"$ref": "#/$defs/n"}] * 1_000}
    assert kind({"$ref": "#/$defs/n"}, {"$defs": {"n": alternatives}}) == "anything"


def test_each_field_is_one_harmless_line_whatever_its_description_holds() -> None:
    schema = {
        "properties": {"a": {"type": "string", "description": "one\ntwo\x1b[2J" + "x" * 500}, "b\n": {"type": "null"}},
        "required": ["a"],
    }
    first, second = outline(schema)
    assert first.startswith("a: string, required. one two\\u001b[2Jx") and len(first) < 200
    assert second == "b : null"


@pytest.mark.parametrize("schema", [{}, {"properties": []}, {"properties": {"a": 1}, "required": 3}])
def test_a_schema_that_says_little_is_no_mistake(schema: Any) -> None:
    assert list(outline(schema)) == (["a: anything"] if schema.get("required") else [])
