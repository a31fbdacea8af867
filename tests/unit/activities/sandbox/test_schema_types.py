"""Schemas as annotations: right where they are simple, `Any` where they are not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.activities.sandbox.inspection import annotation

KINDS = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object", "unheard-of"])
SCHEMAS = st.recursive(
    st.booleans() | st.fixed_dictionaries({"type": KINDS | st.lists(KINDS, max_size=3)}),
    lambda inner: (
        st.fixed_dictionaries({"type": st.just("array"), "items": inner})
        | st.fixed_dictionaries({"anyOf": st.lists(inner, max_size=3)})
        | st.fixed_dictionaries({"oneOf": st.lists(inner, max_size=3), "$ref": st.text()})
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(("schema", "told"), [
    *(({"type": "string", "enum": ["a"]}, "str"), ({"type": "integer"}, "int"), ({"type": "number"}, "float")),
    *(({"type": ["number", "null"]}, "None | float"), ({"type": "array"}, "list[Any]"), ({}, "Any")),
    ({"type": "array", "items": {"type": "boolean"}}, "list[bool]"),
    ({"type": "object", "properties": {"a": {"type": "string"}}}, "dict[str, Any]"),
    ({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]}, "list[int] | str"),
    *(({"oneOf": [{"type": "string"}, {"minimum": 3}]}, "Any"), ({"$ref": "#/$defs/a", "type": "string"}, "Any")),
    (True, "Any"),
])  # fmt: skip
def test_an_annotation_matches_its_schema(schema: Any, told: str) -> None:
    assert annotation(schema) == told


@given(SCHEMAS)
def test_every_annotation_is_one_expression(schema: Any) -> None:
    compile(annotation(schema), "annotation", "eval")
