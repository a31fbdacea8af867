"""A schema as a person reads it beside the arguments."""

from typing import Any

import pytest

from perdure.core.json_schema import kind, outline


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
