"""The objects that the stages ask a model for. Every field is required and nothing else is allowed, which is what
providers demand of a strict schema."""

from typing import Final

from pydantic import JsonValue

from graph.nodes.ask_object import Wanted

Schema = dict[str, JsonValue]


def _object(**properties: JsonValue) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


_TEXT: Final[Schema] = {"type": "string", "maxLength": 4_000}
_XML: Final[Schema] = {"type": "string", "maxLength": 16_000}
_TEXTS: Final[Schema] = {"type": "array", "items": {"type": "string", "maxLength": 200}, "maxItems": 6}

CLASSIFY: Final = Wanted(
    "classify",
    _object(
        kind={"type": "string", "enum": ["palette", "question", "visualization", "transformation"]},
        excludes={"type": "boolean"},
    ),
)
PLAN: Final = Wanted(
    "plan",
    _object(
        early_exit={"type": "boolean"},
        question=_TEXT,
        options=_TEXTS,
        transformation=_TEXT,
        xml=_XML,
        visualization=_TEXT,
        suggestions=_TEXTS,
    ),
)
PLAN_XML: Final = Wanted("plan_xml", _object(xml=_XML))
SPECIFY: Final = Wanted("specify", _object(xml=_XML))
MARKS: Final = Wanted(
    "marks",
    _object(
        marks={
            "type": "array",
            "maxItems": 8,
            "items": _object(
                mark={"type": "string", "maxLength": 40}, score={"type": "number", "minimum": 0, "maximum": 1}
            ),
        }
    ),
)
EXCLUDE: Final = Wanted(
    "exclude",
    _object(
        exclusions={
            "type": "array",
            "maxItems": 20,
            "items": _object(
                selector={"type": "string", "maxLength": 40},
                value={"type": "string", "maxLength": 40},
                scope={"type": "string", "maxLength": 40},
            ),
        }
    ),
)

_COLUMNS: Final[Schema] = {
    "type": "array",
    "minItems": 1,
    "maxItems": 200,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 200},
            "kind": {"type": "string", "enum": ["quantitative", "temporal", "nominal", "boolean"]},
            "distinct": {"type": "integer", "minimum": 0},
            "nulls": {"type": "integer", "minimum": 0},
            "least": {"type": "number"},
            "most": {"type": "number"},
        },
        "required": ["name", "kind", "distinct", "nulls"],
        "additionalProperties": False,
    },
}
REPLY: Final = _object(text={"type": "string", "minLength": 1, "maxLength": 2_000})
"""What an answer to a clarification is."""
HANDED_IN: Final[Schema] = {
    "type": "object",
    "properties": {
        "ok": {"type": "boolean"},
        "error": {"type": "string", "maxLength": 500},
        "rows": {"type": "integer", "minimum": 0},
        "columns": _COLUMNS,
        "warnings": _TEXTS,
    },
    "required": ["ok"],
    "additionalProperties": False,
}
"""What a client hands in: counts and ranges of columns. There is no place in it for a row (S4-49)."""
