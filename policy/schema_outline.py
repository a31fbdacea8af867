"""A JSON Schema of an object as a few lines for a person: each field, what it may hold, what it means."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from policy.printable import one_line

_MOST_CHARACTERS = 160
_DEEPEST = 6
"""A schema may name itself."""
_MOST_LOOKS = 500
"""Parts of a schema that one field is told by: alternatives may each have alternatives, and a server writes them."""


def outline(schema: Mapping[str, Any]) -> Iterator[str]:
    """A line for each field of the object, those that must be there first named so."""
    fields = schema.get("properties")
    required = schema.get("required")
    for name, field in (fields if isinstance(fields, Mapping) else {}).items():
        must = ", required" if isinstance(required, list) and name in required else ""
        read = followed(field, schema)
        meaning = read.get("description") or (field.get("description") if isinstance(field, Mapping) else "")
        told = f"{name}: {kind(field, schema)}{must}" + (f". {meaning}" if meaning else "")
        yield one_line(told, _MOST_CHARACTERS)


def kind(field: object, root: Mapping[str, Any]) -> str:
    """What a field may hold, in words."""
    return _kind(field, root, 0, iter(range(_MOST_LOOKS)))


def _kind(field: object, root: Mapping[str, Any], depth: int, looks: Iterator[int]) -> str:
    read = followed(field, root) if depth <= _DEEPEST and next(looks, None) is not None else None
    if not read:
        return "anything"
    if "const" in read:
        return _json(read["const"])
    if isinstance(read.get("enum"), list):
        return "one of " + ", ".join(map(_json, read["enum"]))
    either = read.get("anyOf") or read.get("oneOf")
    if isinstance(either, list):
        return " or ".join(dict.fromkeys(_kind(each, root, depth + 1, looks) for each in either))
    told = read.get("type", "anything")
    name = " or ".join(map(str, told)) if isinstance(told, list) else str(told)
    if name == "array" and "items" in read:
        return f"list of {_kind(read['items'], root, depth + 1, looks)}{_bounds(read)}"
    inner = read.get("properties")
    if name == "object" and isinstance(inner, Mapping) and inner:
        return "object with " + ", ".join(map(str, inner))
    return name + _bounds(read)


def followed(field: object, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A field after its reference into the same schema, if it is one."""
    if not isinstance(field, Mapping):
        return {}
    reference = field.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return field
    found: object = root
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "{} characters or more",
    "maxLength": "{} characters at most",
    "minItems": "{} or more",
    "maxItems": "{} at most",
    "pattern": "like {}",
    "format": "as {}",
}


def _bounds(read: Mapping[str, Any]) -> str:
    told = [words.format(read[name]) for name, words in _BOUNDS.items() if name in read]
    return f" ({', '.join(told)})" if told else ""


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
