"""Finds types of parameters that may refuse values that fit their JSON Schema.

Only types that are known to be exact count as exact. Kinds of core schema are known by their keys, and patterns by
their parts. The values of enums and literals are tried.
"""

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, SchemaValidator, to_jsonable_python

from perdure.core.calls.jsonb import InvalidArguments, jsonb_form

# The keys of a type's core schema that its JSON Schema repeats exactly.
_EXACT: dict[str, frozenset[str]] = {
    "any": frozenset(),
    "bool": frozenset(),
    "default": frozenset({"schema", "default", "default_factory"}),
    "definition-ref": frozenset({"schema_ref"}),
    "definitions": frozenset({"schema", "definitions"}),
    "dict": frozenset({"keys_schema", "values_schema"}),
    "enum": frozenset({"cls", "members", "sub_type"}),
    "float": frozenset({"ge", "gt", "le", "lt", "multiple_of"}),
    "int": frozenset({"ge", "gt", "le", "lt"}),
    "list": frozenset({"items_schema", "min_length", "max_length"}),
    "literal": frozenset({"expected"}),
    "model": frozenset({"cls", "config", "custom_init", "root_model", "schema"}),
    "model-field": frozenset({"schema", "validation_alias", "serialization_alias"}),
    "model-fields": frozenset({"computed_fields", "fields", "model_name"}),
    "none": frozenset(),
    "nullable": frozenset({"schema"}),
    "str": frozenset({"max_length", "min_length", "pattern"}),
    "union": frozenset({"choices"}),
}
_NO_CHECK = frozenset({"type", "ref", "metadata", "serialization"})
_WORDS = frozenset({"description", "examples", "title"})
_BASES = frozenset(BaseModel.__mro__)
_JSON_VALUE = "pydantic.types.JsonValue:"
_EXACT_FLOATS = 2**53
"""The least bound of a float that an integer beyond it can become, because the float is rounded."""

_ESCAPED = r"\\[\^$\\.*+?()\[\]{}|/\-]|\\[tnrfv]"
_IN_CLASS = rf"(?:[^\[\]\\^&~-]|&(?!&)|~(?!~)|{_ESCAPED})"
_CLASS = rf"\[-?(?:{_IN_CLASS}(?:-{_IN_CLASS})?|\\[dw](?!-[^\]]))+-?\]"
_NEGATED_CLASS = rf"\[\^-?(?:{_IN_CLASS}(?:-{_IN_CLASS})?)+-?\]"
_ATOM = rf"[^\\\[\](){{}}^$.|*+?]|\.|\)|{_ESCAPED}|\\[dw]|{_CLASS}|{_NEGATED_CLASS}"
_SAME_PATTERN = re.compile(rf"(?:[\^$|]|\((?:\?:)?|(?:{_ATOM})(?:(?:[*+?]|\{{\d+(?:,\d*)?\}})\??)?)*")
"""Patterns with which pydantic accepts what JavaScript accepts.

`.`, `\\d` and `\\w` accept more in pydantic, which is harmless unless a class negates them. `\\s`, `\\b` and all other
escapes differ. So do nested classes, `&&`, `--` and `~~` in a class.
"""


def checks_more(part: Any) -> bool:
    """Returns whether a core schema may refuse values that fit the JSON Schema of the same type."""
    if isinstance(part, list | tuple):
        return any(map(checks_more, part))
    if not isinstance(part, dict) or str(part.get("ref", "")).startswith(_JSON_VALUE):
        return False
    kind = str(part.get("type"))
    if part.keys() - _NO_CHECK - _EXACT.get(kind, frozenset()) or kind not in _EXACT:
        return True
    if _has_own_schema(part) or _refuses_more(kind, part):
        return True
    fields = part.get("fields", {}).values()
    inner = (part.get(name) for name in ("schema", "definitions", "items_schema", "values_schema", "choices"))
    return any(map(checks_more, (*inner, *fields)))


def _refuses_more(kind: str, part: Mapping[str, Any]) -> bool:
    """Returns whether a type refuses more by the values of its keys."""
    match kind:
        case "model":
            return bool(part.get("custom_init") or part.get("root_model"))
        case "model-field":
            return not isinstance(part.get("validation_alias", ""), str)
        case "str":
            pattern = part.get("pattern", "")
            return not isinstance(pattern, str) or not _SAME_PATTERN.fullmatch(pattern)
        case "float":
            return not all(_is_exact(part[name]) for name in _EXACT["float"] & part.keys())
        case "dict":
            return part.get("keys_schema") not in (None, {"type": "str"})
        case "enum" | "literal":
            return not all(_accepted_values(part))
    return False


def _is_exact(bound: object) -> bool:
    return isinstance(bound, int | float) and abs(bound) < _EXACT_FLOATS


def _accepted_values(part: Mapping[str, Any]) -> Iterator[bool]:
    """Yields for each value of an enum or a literal whether the type accepts it as a call has it."""
    validator = SchemaValidator({name: value for name, value in part.items() if name != "ref"})
    for member in part["members" if part["type"] == "enum" else "expected"]:
        try:
            value = jsonb_form(to_jsonable_python(member.value if isinstance(member, Enum) else member))
            validator.validate_python(value)
        except (ValidationError, PydanticSerializationError, InvalidArguments):
            yield False
        else:
            yield True


def _has_own_schema(part: Mapping[str, Any]) -> bool:
    """Returns whether the JSON Schema of a type may be another one than that of its kind."""
    kind, cls, metadata = part["type"], part.get("cls"), part.get("metadata", {})
    if kind == "model" and cls is not None:
        own_schema = any("__get_pydantic_json_schema__" in each.__dict__ for each in cls.__mro__ if each not in _BASES)
        return own_schema or bool(cls.model_config.keys() - {"extra", "frozen", "title"})
    if kind == "enum" and hasattr(cls, "__get_pydantic_json_schema__"):
        return True
    other = metadata.keys() - {"pydantic_js_functions", "pydantic_js_updates", "pydantic_internal_union_tag_key"}
    functions = metadata.get("pydantic_js_functions") if kind != "enum" else None
    return bool(other or functions or metadata.get("pydantic_js_updates", {}).keys() - _WORDS)


def impossible_values(part: Any) -> str | None:
    """Returns what to change in a type that no JSON can express, although its JSON Schema names values; or None."""
    if isinstance(part, list | tuple):
        return next(filter(None, map(impossible_values, part)), None)
    if not isinstance(part, dict):
        return None
    kind = part.get("type")
    if kind == "literal" and not any(_accepted_values(part)):
        return f"no JSON is {_shown(part['expected'])}; write the values themselves, such as Literal['red']"
    if kind == "enum" and "missing" not in part and not any(_accepted_values(part)):
        return f"no JSON is {_shown(part['members'])}; give the members of {part['cls'].__name__} texts or numbers"
    if kind == "model" and not part["cls"].model_config.keys() & {"validate_by_name", "populate_by_name"}:
        names = _fields_within(part)
        if names:
            return f"{part['cls'].__name__}.{names[0]} is read from a path, which no schema can say; alias it by a name"
    return next(filter(None, (impossible_values(part[name]) for name in part if name not in _NO_CHECK)), None)


def _shown(members: list[object]) -> str:
    return " or ".join(map(repr, members[:3]))


def _fields_within(model: Mapping[str, Any]) -> list[str]:
    """Returns the fields of a model that are read only from a place within another value (AliasPath)."""
    fields = model.get("schema", {}).get("fields", {})
    return [name for name, field in fields.items() if _is_within(field.get("validation_alias"))]


def _is_within(alias: object) -> bool:
    paths = alias if isinstance(alias, list) else []
    paths = paths if all(isinstance(each, list) for each in paths) else [paths]
    return bool(paths) and all(len(each) > 1 for each in paths)
