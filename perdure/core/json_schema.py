"""Validates a value against a JSON Schema in bounded time, and describes schemas for people.

Schemas come from authors of tools and blocks and from MCP servers, values from models and callers. None of them may
block the event loop, which all users share.

A schema is read by the draft that it names in `$schema`, without one by 2020-12. A schema within it that names a draft
is read by that one. OpenAPI's `nullable` is understood.
Patterns are those of JavaScript (core/patterns.py). Decimals are compared by their shortest texts, so that 19.99 is a
multiple of 0.01. Distinct items are counted by their canonical text, not compared in pairs.

The schema keywords that are evaluated for a value are counted. A schema that branches into itself twice, thirty times
over, would evaluate too many for any value. Every other failure that a schema causes in the library is reported as a
fault of the schema.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft7Validator
from jsonschema.exceptions import SchemaError as InvalidSchema
from jsonschema.exceptions import ValidationError
from pydantic import JsonValue
from referencing.exceptions import Unresolvable

from perdure.core.bounded_schemas import Effort, TooMuch, draft_of, spending, validator_of
from perdure.core.patterns import InvalidPattern, compile_pattern
from perdure.core.text import one_line

PATTERN_SECONDS = 1.0
"""Seconds for all patterns of one validation: far above what a sensible one takes on a busy machine."""
MIN_CHECKS, CHECKS_A_NODE, MAX_CHECKS = 10_000, 20, 200_000
"""Limits of evaluated keywords: a minimum, and more for each part of the value, far above what a sensible schema needs.
A thousand take about 0.02 s (measured)."""
VALUE_KEYWORDS = frozenset({"const", "default", "enum", "examples"})
"""Keywords whose values are data, not schemas."""
BY_NAME = frozenset(("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"))
"""Keywords whose values have a schema for each name."""
_Place = tuple[str | int, ...]
MAX_FAULTS = 3
_MAX_ERROR_CHARACTERS = 200
_MAX_OUTLINE_LINE_CHARACTERS = 160
_MAX_OUTLINE_DEPTH = 6
"""Limits the depth, because a schema can refer to itself."""
_MAX_SCHEMA_PARTS = 500
"""Maximum parts of a schema that are read for one field. Alternatives can be nested, and servers write the schemas."""
_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "minimum length {}",
    "maxLength": "maximum length {}",
    "minItems": "{} or more",
    "maxItems": "{} at most",
    "pattern": "pattern {}",
    "format": "format {}",
}


@dataclass(frozen=True, slots=True)
class SchemaError:
    """One way in which arguments violate a schema."""

    field: str
    """Its path, with dots; empty for the value as a whole."""
    problem: str

    def __str__(self) -> str:
        text = f"{self.field}: {self.problem}" if self.field else self.problem
        return text if len(text) <= _MAX_ERROR_CHARACTERS else text[: _MAX_ERROR_CHARACTERS - 1] + "…"


def effort_for(args: object) -> Effort:
    """Returns the effort of one validation of `args`."""
    checks = min(MIN_CHECKS + CHECKS_A_NODE * _nodes(args), MAX_CHECKS)
    return Effort.starting(checks, PATTERN_SECONDS)


def schema_errors(
    args: Mapping[str, JsonValue], schema: Mapping[str, JsonValue], effort: Effort | None = None
) -> list[SchemaError]:
    """Returns how `args` violate `schema`, by field; empty if they are valid."""
    found = _validation_errors(args, schema, effort or effort_for(args))
    if isinstance(found, str):
        return [SchemaError("", found)]
    return [SchemaError(".".join(map(str, error.absolute_path)), error.message) for error in map(_nearest_error, found)]


def answer_fault(answer: Mapping[str, JsonValue], schema: Mapping[str, JsonValue]) -> str | None:
    """Returns the first few ways in which a result violates the schema from the same source, or None.

    A schema that is unusable, or too slow to check, forbids nothing, as if its author had provided none.
    """
    found = _validation_errors(answer, schema, effort_for(answer))
    if isinstance(found, str):
        return None
    return schema_errors_text([SchemaError(".".join(map(str, error.absolute_path)), error.message) for error in found])


def _validation_errors(
    args: Mapping[str, JsonValue], schema: Mapping[str, JsonValue], effort: Effort
) -> list[ValidationError] | str:
    """Returns the library's errors, or why nothing can be validated against the schema."""
    try:
        with spending(effort):
            errors = validator_of(schema).iter_errors(dict(args))
            return sorted(errors, key=lambda error: list(map(str, error.path)))
    except Unresolvable:
        why = "the schema refers to something outside itself, so no value can be validated"
    except TimeoutError:
        why = "matching the schema's patterns took too long; send simpler values"
    except InvalidPattern as error:
        why = f"the schema has an invalid pattern, so no value can be validated: {error}"
    except TooMuch:
        why = "the schema has too many branches, so these values cannot be validated"
    except Exception as error:  # a schema that refers to itself endlessly must not end the turn
        why = f"the schema is invalid, so no value can be validated ({type(error).__name__})"
    return why


def _nodes(value: object) -> int:
    """Returns the number of parts of a value, including itself."""
    count, pending = 0, [value]
    while pending:
        each = pending.pop()
        count += 1
        if isinstance(each, Mapping):
            pending += each.values()
        elif isinstance(each, list):
            pending += each
    return count


def _nearest_error(error: ValidationError) -> ValidationError:
    """Returns the error within the only alternative that has the value's type. If several have it, or none, returns the
    error itself."""
    if error.validator not in ("anyOf", "oneOf") or not error.context:
        return error
    of_another_type = {each.schema_path[0] for each in error.context if each.validator == "type" and not each.path}
    near = [each for each in error.context if each.schema_path[0] not in of_another_type]
    return _nearest_error(near[0]) if len({each.schema_path[0] for each in near}) == 1 else error


def schema_fault(args: Mapping[str, JsonValue], schema: Mapping[str, JsonValue]) -> str | None:
    """Returns the first few ways in which `args` violate `schema`, or None."""
    return schema_errors_text(schema_errors(args, schema))


def schema_errors_text(errors: Sequence[SchemaError]) -> str | None:
    """Returns the first few schema errors as one text, or None if there is none."""
    if not errors:
        return None
    text = "; ".join(map(str, errors[:MAX_FAULTS]))
    return text + (f"; and {len(errors) - MAX_FAULTS} more" if len(errors) > MAX_FAULTS else "")


def mistakes_in_schema(schema: Mapping[str, JsonValue]) -> list[tuple[_Place, str]]:
    """Returns what makes the schema itself invalid, each mistake with its place; empty if it is valid."""
    try:
        draft_of(schema).check_schema(dict(schema), format_checker=None)
    except InvalidSchema as error:
        return [(tuple(error.absolute_path), _hint(schema) + error.message)]
    return list(_invalid_patterns(schema, ()))


def _hint(schema: Mapping[str, JsonValue]) -> str:
    """Returns what to do about an invalid schema that would be valid in the draft that it does not name."""
    is_older = "$schema" not in schema and Draft7Validator(Draft7Validator.META_SCHEMA).is_valid(dict(schema))
    return "name its draft in $schema, because it is not valid in 2020-12: " if is_older else ""


def schemas_within(schema: Mapping[str, Any]) -> Iterator[tuple[_Place, Any]]:
    """Yields what a schema has within it besides data, with its place. The name of a property is not a keyword."""
    for keyword, value in schema.items():
        if keyword in BY_NAME and isinstance(value, Mapping):
            yield from (((keyword, name), each) for name, each in value.items())
        elif keyword not in VALUE_KEYWORDS:
            yield (keyword,), value


def without_keywords(part: Any, keywords: Collection[str]) -> Any:
    """Returns a schema without these keywords, at any depth, as far as their values are texts. A property of such a
    name stays, as does all data in `enum`, `const`, `default` and `examples`."""
    if isinstance(part, list):
        return [without_keywords(each, keywords) for each in part]
    if not isinstance(part, Mapping):
        return part
    reduced: dict[str, Any] = {}
    for keyword, value in part.items():
        if keyword in keywords and isinstance(value, str):
            continue
        if keyword in BY_NAME and isinstance(value, Mapping):
            reduced[keyword] = {name: without_keywords(each, keywords) for name, each in value.items()}
        else:
            reduced[keyword] = value if keyword in VALUE_KEYWORDS else without_keywords(value, keywords)
    return reduced


def _invalid_patterns(part: object, place: _Place) -> Iterator[tuple[_Place, str]]:
    if isinstance(part, list):
        for number, each in enumerate(part):
            yield from _invalid_patterns(each, (*place, number))
    if not isinstance(part, Mapping):
        return
    named = part.get("patternProperties")
    patterns = [("patternProperties", each) for each in (named if isinstance(named, Mapping) else ())]
    for keyword, pattern in [*patterns, ("pattern", part.get("pattern"))]:
        try:
            compile_pattern(pattern) if isinstance(pattern, str) else None
        except InvalidPattern as error:
            yield (*place, keyword), f"{pattern!r} is not a pattern of JavaScript: {error}"
    for within, inner in schemas_within(part):
        yield from _invalid_patterns(inner, (*place, *within))


def outline_schema(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line for each field of the object; required ones are marked."""
    fields = schema.get("properties")
    required = schema.get("required")
    for name, field in (fields if isinstance(fields, Mapping) else {}).items():
        must = ", required" if isinstance(required, list) and name in required else ""
        read = follow_reference(field, schema)
        meaning = read.get("description") or (field.get("description") if isinstance(field, Mapping) else "")
        line = f"{name}: {field_type(field, schema)}{must}" + (f". {meaning}" if meaning else "")
        yield one_line(line, _MAX_OUTLINE_LINE_CHARACTERS)


def field_type(field: object, root: Mapping[str, Any]) -> str:
    """Returns the type of a field in words, such as "list of string" or "one of 1, 2". References are followed in
    `root`."""
    return _kind(field, root, 0, iter(range(_MAX_SCHEMA_PARTS)))


def _kind(field: object, root: Mapping[str, Any], depth: int, parts: Iterator[int]) -> str:
    read = follow_reference(field, root) if depth <= _MAX_OUTLINE_DEPTH and next(parts, None) is not None else None
    if not read:
        return "anything"
    if "const" in read:
        return _json(read["const"])
    if isinstance(read.get("enum"), list):
        return "one of " + ", ".join(map(_json, read["enum"]))
    either = read.get("anyOf") or read.get("oneOf")
    if isinstance(either, list):
        return " or ".join(dict.fromkeys(_kind(each, root, depth + 1, parts) for each in either))
    types = read.get("type", "anything")
    name = " or ".join(map(str, types)) if isinstance(types, list) else str(types)
    if name == "array" and "items" in read:
        return f"list of {_kind(read['items'], root, depth + 1, parts)}{_describe_bounds(read)}"
    inner = read.get("properties")
    if name == "object" and isinstance(inner, Mapping) and inner:
        return "object with " + ", ".join(map(str, inner))
    return name + _describe_bounds(read)


def follow_reference(field: object, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the field that a reference within the same schema points to, or the field itself."""
    if not isinstance(field, Mapping):
        return {}
    reference = field.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return field
    found: object = root
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _describe_bounds(read: Mapping[str, Any]) -> str:
    parts = [words.format(read[name]) for name, words in _BOUNDS.items() if name in read]
    return f" ({', '.join(parts)})" if parts else ""


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
