"""JSON schemas as annotations, for the type checker: never narrower than the schema, so it refuses no good block.

An object is `dict[str, Any]` whatever it holds: a TypedDict could not be passed to a parameter that says `dict`, which
is what blocks say. What is inside is checked when it is there, by the schema itself.
"""

from collections.abc import Mapping

from pydantic import JsonValue

_SIMPLE = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
ANY = "Any"


def annotation(schema: JsonValue) -> str:
    """What a value of this schema is in Python; `Any` wherever the schema says more than a type can."""
    if not isinstance(schema, Mapping) or "$ref" in schema:
        return ANY
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return _union([annotation({**schema, "type": kind}) for kind in kinds])
    if isinstance(kinds, str):
        return _of_kind(kinds, schema)
    for choice in ("anyOf", "oneOf"):
        options = schema.get(choice)
        if isinstance(options, list):
            return _union([annotation(option) for option in options])
    return ANY


def properties(schema: Mapping[str, JsonValue]) -> dict[str, tuple[str, bool]]:
    """Annotation of each property of an object's schema, and whether it must be there."""
    listed, needed = schema.get("properties"), schema.get("required")
    if not isinstance(listed, dict):
        return {}
    must = set(map(str, needed)) if isinstance(needed, list) else set()
    return {name: (annotation(each), name in must) for name, each in listed.items()}


def _of_kind(kind: str, schema: Mapping[str, JsonValue]) -> str:
    if kind == "array":
        return f"list[{annotation(schema.get('items', True))}]"
    if kind == "object":
        return "dict[str, Any]"
    return _SIMPLE.get(kind, ANY)


def _union(annotations: list[str]) -> str:
    kinds = sorted(set(annotations))
    return ANY if ANY in kinds or not kinds else " | ".join(kinds)
