"""JSON Schemas in the form in which every model provider accepts them.

Providers refuse a whole request because of one tool whose schema uses a keyword that they do not support. So a wider
schema is sent that they accept. What matches the original schema matches it too, except that a property of one
alternative has its schema in all of them. The model's arguments are then checked against the original schema
(perdure/core/calls/arguments.py).

Property names with characters that a provider does not accept are replaced. The replacement depends on the name only
and ends in a digest, so that it can be reversed with the schema alone.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from jsonschema import Draft202012Validator
from pydantic import JsonValue

from perdure.contracts.values import canonical_json, sha256_hex
from perdure.core.agents.schema_drafts import escape, in_2020_12
from perdure.core.json_schema import schemas_within

NOT_AN_OBJECT: Final = "not_an_object"
"""The schema does not describe an object."""
UNRESOLVED_REFERENCE: Final = "unresolved_reference"
"""The schema refers to something that it does not contain."""

UNREADABLE_SCHEMA: Final = "unreadable_schema"
"""The schema is not one of JSON Schema, or too deep to read."""

_TOP_LEVEL: Final = ("allOf", "anyOf", "oneOf", "enum", "not")
"""Keywords that OpenAI does not accept at the top; Anthropic does not accept the first three."""
_PROPERTY_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
"""Anthropic checks this at the top level, also behind Bedrock."""
_MAX_BRANCH_DEPTH: Final = 8
_DIGEST_CHARACTERS: Final = 8

_SINGLE: Final = frozenset(
    (
        "additionalProperties",
        "additionalItems",
        "unevaluatedProperties",
        "unevaluatedItems",
        "not",
        "if",
        "then",
        "else",
        "contains",
        "propertyNames",
    )
)
_LISTS: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_BY_NAME: Final = frozenset(("$defs", "definitions", "patternProperties", "dependentSchemas"))
_MENDED: Final = _SINGLE | _LISTS | _BY_NAME | {"properties", "items", "required", "dependentRequired", "$ref"}

_ANNOTATIONS: Final = frozenset(("default", "description", "examples", "title"))

_NOT_STRICT: Final = frozenset(
    (
        "allOf",
        "oneOf",
        "not",
        "if",
        "then",
        "else",
        "dependentRequired",
        "dependentSchemas",
        "patternProperties",
        "propertyNames",
        "unevaluatedProperties",
        "unevaluatedItems",
        "prefixItems",
        "contains",
        "uniqueItems",
    )
)
"""Keywords that OpenAI does not accept in a strict schema."""
_TYPED: Final = frozenset(("type", "$ref", "anyOf", "enum", "const"))
"""Keywords of which each strict schema must have one."""

_Schema = Mapping[str, Any]


class Unsendable(Exception):
    """No provider accepts the schema in any form. The argument is the rule that it violates."""

    def __init__(self, rule: str) -> None:
        super().__init__(rule)
        self.rule = rule


def sendable_schema(schema: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Returns the schema of an object in the form that every provider accepts.

    Raises: Unsendable, whatever the schema is.
    """
    sent, rule = _sendable_text(json.dumps(schema))
    if rule:
        raise Unsendable(rule)
    form: dict[str, JsonValue] = json.loads(sent)
    return form


@lru_cache(maxsize=2_048)
def _sendable_text(text: str) -> tuple[str, str]:
    """Returns the form as JSON, or the rule that the schema violates. Most requests repeat the tools of others."""
    try:
        return json.dumps(_sendable(json.loads(text))), ""
    except Unsendable as error:
        return "", error.rule
    except Exception:  # servers write the schemas; one of them must not cost the other tools
        return "", UNREADABLE_SCHEMA


def _sendable(schema: _Schema) -> dict[str, JsonValue]:
    schema = in_2020_12(schema)
    flat = _flat(schema, schema, _MAX_BRANCH_DEPTH)
    if "object" not in _types({"type": "object", **flat}):
        raise Unsendable(NOT_AN_OBJECT)
    sent: dict[str, Any] = _mended({"properties": {}, **flat, "type": "object"})
    if not all(_resolves(reference, sent) for reference in _references(sent)):
        raise Unsendable(UNRESOLVED_REFERENCE)
    if not Draft202012Validator(Draft202012Validator.META_SCHEMA).is_valid(sent):
        raise Unsendable(UNREADABLE_SCHEMA)
    return sent


def is_strict(schema: object) -> bool:
    """Returns whether a schema is in the subset that OpenAI requires for strict structured output: each object has all
    its properties required and allows no others."""
    if isinstance(schema, list):
        return all(map(is_strict, schema))
    if not isinstance(schema, dict):
        return schema is not True
    if _NOT_STRICT & schema.keys() or not _TYPED & schema.keys():
        return False
    properties = schema.get("properties", {})
    if "object" in _types(schema) or "properties" in schema:
        closed = schema.get("additionalProperties") is False
        if not closed or set(schema.get("required", ())) != set(properties):
            return False
    inner = [schema[keyword] for keyword in ("items", "anyOf") if keyword in schema]
    by_name = [each for keyword in ("properties", "$defs", "definitions") for each in schema.get(keyword, {}).values()]
    return all(map(is_strict, [*inner, *by_name]))


def sent_property(name: str) -> str:
    """Returns the form in which a property's name is sent; an accepted name is unchanged."""
    if _PROPERTY_NAME.fullmatch(name):
        return name
    readable = re.sub(r"[^a-zA-Z0-9_.-]+", "_", name).strip("_")[: 64 - _DIGEST_CHARACTERS - 1]
    return f"{readable}_{sha256_hex(name)[:_DIGEST_CHARACTERS]}"


def replaced_properties(schema: object) -> dict[str, str]:
    """Returns the property names of a schema that are replaced when it is sent: {sent name: own name}."""
    replaced: dict[str, str] = {}
    pending = [schema]
    while pending:
        each = pending.pop()
        if isinstance(each, list):
            pending += each
        elif isinstance(each, dict):
            pending += each.values()
            replaced |= {sent_property(name): name for name in _property_names(each)}
    return {sent: name for sent, name in replaced.items() if sent != name}


def with_sent_properties(arguments: str, sent_names: Mapping[str, str]) -> str:
    """Returns a call's arguments, a JSON object, with the names under which its properties are sent. `sent_names` has
    these by the properties' own names."""
    value = json.loads(arguments)
    renamed = _renamed(value, sent_names)
    return arguments if renamed == value else canonical_json(renamed)


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Returns `value` with its properties renamed, except those whose new name the same object has already."""
    if isinstance(value, list):
        return [_renamed(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    changed = {name: names[name] for name in value if name in names and names[name] not in value}
    return {changed.get(name, name): _renamed(item, names) for name, item in value.items()}


def _property_names(schema: dict[str, Any]) -> Iterator[str]:
    """Yields the names of a schema's own properties, declared or only required."""
    properties, required, dependent = (schema.get(each) for each in ("properties", "required", "dependentRequired"))
    lists = [required]
    for names in (properties, dependent):
        yield from names if isinstance(names, dict) else ()
    if isinstance(dependent, dict):
        lists += dependent.values()
    for names in lists:
        yield from (name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def _flat(schema: _Schema, root: _Schema, depth: int) -> dict[str, Any]:
    """Returns the schema without a reference or alternatives at its top. The properties of the alternatives are added,
    because a model cannot use a property that it does not know."""
    reference = schema.get("$ref")
    if isinstance(reference, str) and depth:
        target = _target(reference, root)
        if not isinstance(target, dict):
            raise Unsendable(UNRESOLVED_REFERENCE)
        own = {keyword: value for keyword, value in schema.items() if keyword != "$ref"}
        return _flat({**target, **own}, root, depth - 1)
    flat = {keyword: value for keyword, value in schema.items() if keyword not in (*_TOP_LEVEL, "$ref")}
    properties: dict[str, Any] = {}
    required = list(schema.get("required", ()))
    for keyword in ("allOf", "anyOf", "oneOf"):
        for branch in schema.get(keyword, ()) if depth else ():
            part = _flat(branch, root, depth - 1) if isinstance(branch, dict) else {}
            for name, value in part.get("properties", {}).items():
                properties[name] = _either(properties[name], value) if name in properties else value
            required += part.get("required", ()) if keyword == "allOf" else ()
    if properties:
        flat["properties"] = {**properties, **schema.get("properties", {})}
    if required:
        flat["required"] = list(dict.fromkeys(required))
    return flat


def _either(first: Any, second: Any) -> Any:
    """Returns a schema that matches whatever matches one of the two."""
    alternatives = first["anyOf"] if isinstance(first, dict) and first.keys() == {"anyOf"} else [first]
    if second in alternatives:
        return first
    return {"anyOf": [*alternatives, second]}


def _mended(schema: Any) -> Any:
    """Returns the schema with names that every provider accepts, with `items` for each array, and for Gemini with each
    required property among the properties and with texts as typed `enum`."""
    if not isinstance(schema, dict):
        return {} if schema is True else {"not": {}}
    schema = _with_one_alternative(_without_all_of(schema))
    mended = {
        keyword: _mended_keyword(keyword, value) if keyword in _MENDED else value for keyword, value in schema.items()
    }
    texts = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(texts, list) and texts and all(isinstance(each, str) for each in texts):
        mended = {keyword: value for keyword, value in mended.items() if keyword != "const"}
        mended |= {"type": schema.get("type", "string"), "enum": texts}
    if "array" in _types(schema):
        mended.setdefault("items", {})
    if isinstance(mended.get("properties"), dict):
        missing = [name for name in mended.get("required", ()) if name not in mended["properties"]]
        mended["properties"] |= {name: {} for name in missing}
    return mended


def _without_all_of(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema with the parts of its `allOf` as its own keywords, which LiteLLM would not send to Gemini.
    Parts that contradict each other stay."""
    parts = schema.get("allOf", [])
    if not parts or not all(isinstance(part, dict) for part in parts):
        return schema
    merged = {keyword: value for keyword, value in schema.items() if keyword != "allOf"}
    for part in map(_without_all_of, parts):
        for keyword, value in part.items():
            known = merged.setdefault(keyword, value)
            if keyword == "required":
                merged[keyword] = list(dict.fromkeys([*known, *value]))
            elif keyword == "properties":
                both = {name: _either(known[name], value[name]) for name in known.keys() & value.keys()}
                merged[keyword] = {**known, **value, **both}
            elif known != value and keyword not in _ANNOTATIONS:
                return schema
    return merged


def _with_one_alternative(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema with `anyOf` in place of `oneOf`, which LiteLLM would not send to Gemini."""
    if "oneOf" not in schema or "anyOf" in schema:
        return schema
    return {"anyOf" if keyword == "oneOf" else keyword: value for keyword, value in schema.items()}


def _mended_keyword(keyword: str, value: Any) -> Any:
    if keyword == "properties" and isinstance(value, dict):
        return {sent_property(name): _named(name, _mended(each)) for name, each in value.items()}
    if keyword in _BY_NAME and isinstance(value, dict):
        return {name: _mended(each) if isinstance(each, dict | bool) else each for name, each in value.items()}
    if keyword in _LISTS and isinstance(value, list):
        return [_mended(each) for each in value]
    if keyword == "items":
        return _mended(_any_item(value) if isinstance(value, list) else value)
    if keyword in _SINGLE and isinstance(value, dict):
        return _mended(value)
    if keyword == "required" and isinstance(value, list):
        return [sent_property(name) for name in value]
    if keyword == "dependentRequired" and isinstance(value, dict):
        return {sent_property(name): [sent_property(each) for each in names] for name, names in value.items()}
    return _sent_pointer(value) if keyword == "$ref" and isinstance(value, str) else value


def _named(name: str, schema: Any) -> Any:
    """Returns the schema of a property; if its name is replaced, with its own name as the title."""
    return schema if sent_property(name) == name else {"title": name, **schema}


def _any_item(items: list[Any]) -> Any:
    """Returns one schema for the items of an array that has a schema for each position (drafts up to 7)."""
    distinct = {canonical_json(each): each for each in items}
    return {"anyOf": [*distinct.values()]} if len(distinct) > 1 else next(iter(distinct.values()), {})


def _types(schema: _Schema) -> list[Any]:
    kind = schema.get("type")
    return kind if isinstance(kind, list) else [kind]


def _sent_pointer(reference: str) -> str:
    parts = reference.split("/")
    return "/".join(
        escape(sent_property(_unescape(part))) if before == "properties" else part
        for before, part in zip(["", *parts], parts, strict=False)
    )


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for each in schema:
            yield from _references(each)
    elif isinstance(schema, dict):
        for place, value in schemas_within(schema):
            if place == ("$ref",) and isinstance(value, str):
                yield value
            else:
                yield from _references(value)


def _resolves(reference: str, root: _Schema) -> bool:
    return _target(reference, root) is not None


def _target(reference: str, root: object) -> object:
    """Returns what a reference within the schema points to, or None."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    found = root
    for part in map(_unescape, reference.split("/")[1:]):
        if isinstance(found, list):
            found = found[int(part)] if part.isdecimal() and int(part) < len(found) else None
        else:
            found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _unescape(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")
