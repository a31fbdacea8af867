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
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from jsonschema import (
    Draft3Validator,
    Draft4Validator,
    Draft6Validator,
    Draft7Validator,
    Draft201909Validator,
    Draft202012Validator,
)
from jsonschema.exceptions import SchemaError as InvalidSchema
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend
from pydantic import JsonValue
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import lookup_recursive_ref

from perdure.contracts.values import canonical_json
from perdure.core.patterns import InvalidPattern, compile_pattern
from perdure.core.text import one_line

PATTERN_SECONDS = 1.0
"""Seconds for all patterns of one validation: far above what a sensible one takes on a busy machine."""
MIN_CHECKS, CHECKS_A_NODE, MAX_CHECKS = 10_000, 20, 200_000
"""Limits of evaluated keywords: a minimum, and more for each part of the value, far above what a sensible schema needs.
A thousand take about 0.02 s (measured)."""
_NULLABLE = ("type", "enum", "const", "$ref", "allOf", "anyOf", "oneOf")
_ENTRIES_A_CHECK = 10
"""A keyword with many entries (`enum`, `required`) has one more count per this many entries."""
VALUE_KEYWORDS = frozenset({"const", "default", "enum", "examples"})
"""Keywords whose values are data, not schemas."""
_Place = tuple[str | int, ...]
MAX_FAULTS = 3
_MAX_ERROR_CHARACTERS = 200
_NOTHING_OUTSIDE: Registry[bool | Mapping[str, Any]] = Registry()
"""A registry without other schemas. Without it, jsonschema fetches a schema's references to other hosts."""
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


def schema_errors(args: Mapping[str, JsonValue], schema: Mapping[str, JsonValue]) -> list[SchemaError]:
    """Returns how `args` violate `schema`, by field; empty if they are valid."""
    found = _validation_errors(args, schema)
    if isinstance(found, str):
        return [SchemaError("", found)]
    return [SchemaError(".".join(map(str, error.absolute_path)), error.message) for error in map(_nearest_error, found)]


def answer_fault(answer: Mapping[str, JsonValue], schema: Mapping[str, JsonValue]) -> str | None:
    """Returns the first few ways in which a result violates the schema from the same source, or None.

    A schema that is unusable, or too slow to check, forbids nothing, as if its author had provided none.
    """
    found = _validation_errors(answer, schema)
    if isinstance(found, str):
        return None
    return schema_errors_text([SchemaError(".".join(map(str, error.absolute_path)), error.message) for error in found])


def _validation_errors(args: Mapping[str, JsonValue], schema: Mapping[str, JsonValue]) -> list[ValidationError] | str:
    """Returns the library's errors, or why nothing can be validated against the schema."""
    checks = min(MIN_CHECKS + CHECKS_A_NODE * _nodes(args), MAX_CHECKS)
    token = _EFFORT.set(_Effort(time.monotonic() + PATTERN_SECONDS, checks))
    try:
        return sorted(
            _BOUNDED[draft_of(schema)](dict(schema), registry=_NOTHING_OUTSIDE).iter_errors(dict(args)),
            key=lambda error: list(map(str, error.path)),
        )
    except Unresolvable:
        why = "the schema refers to something outside itself, so no value can be validated"
    except TimeoutError:
        why = "matching the schema's patterns took too long; send simpler values"
    except InvalidPattern as error:
        why = f"the schema has an invalid pattern, so no value can be validated: {error}"
    except _TooMuch:
        why = "the schema has too many branches, so these values cannot be validated"
    except Exception as error:  # a schema that refers to itself endlessly must not end the turn
        why = f"the schema is invalid, so no value can be validated ({type(error).__name__})"
    finally:
        _EFFORT.reset(token)
    return why


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


@dataclass(slots=True)
class _Effort:
    """The remaining effort of one validation."""

    until: float
    """The deadline for patterns."""
    checks: int

    def spend(self, keyword_value: object) -> None:
        """Counts one keyword and its entries.

        Raises: _TooMuch.
        """
        entries = len(keyword_value) if isinstance(keyword_value, list | dict) else 0
        self.checks -= 1 + entries // _ENTRIES_A_CHECK
        if self.checks < 0:
            raise _TooMuch


class _TooMuch(Exception):
    """The validation evaluated more keywords than allowed."""


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


def _matches(pattern: str, text: str) -> bool:
    """Returns whether the pattern is found.

    Raises: TimeoutError after the deadline of this validation; InvalidPattern.
    """
    left = _EFFORT.get().until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return compile_pattern(pattern).found_in(text, left)


def _pattern(validator: Any, keyword_value: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _matches(keyword_value, instance):
        yield ValidationError(f"{instance!r} does not match {keyword_value!r}")


def _pattern_properties(validator: Any, keyword_value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    for each, its in keyword_value.items() if isinstance(instance, dict) else ():
        for name, value in instance.items():
            if _matches(each, name):
                yield from validator.descend(value, its, path=name, schema_path=each)


def _additional_properties(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extra = [name for name in instance if name not in known and not any(_matches(each, name) for each in patterns)]
    if isinstance(allowed, dict):
        for name in extra:
            yield from validator.descend(instance[name], allowed, path=name)
    elif not allowed and extra:
        names, were = ", ".join(map(repr, sorted(extra))), "was" if len(extra) == 1 else "were"
        yield ValidationError(f"Additional properties are not allowed ({names} {were} unexpected)")


def _unevaluated_properties(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    others = {keyword: value for keyword, value in schema.items() if keyword != "unevaluatedProperties"}
    extra = instance.keys() - _evaluated_properties(validator, instance, others)
    for name in sorted(extra):
        if any(validator.descend(instance[name], allowed)):
            yield ValidationError(f"Unevaluated properties are not allowed ({name!r} was unexpected)")


def _evaluated_properties(validator: Any, instance: dict[str, Any], schema: Any) -> set[str]:
    """Returns the properties that the schema, which the instance fits, or schemas within it have evaluated. The
    library's own function matches patterns without a limit."""
    if not isinstance(schema, dict):
        return set()
    _EFFORT.get().spend(schema)
    if "additionalProperties" in schema or "unevaluatedProperties" in schema:
        return set(instance)
    evaluated: set[str] = instance.keys() & schema.get("properties", {}).keys()
    evaluated |= {name for name in instance for each in schema.get("patternProperties", {}) if _matches(each, name)}
    for at, inner in _schemas_within(validator, instance, schema):
        evaluated |= _evaluated_properties(at, instance, inner)
    return evaluated


def _schemas_within(validator: Any, instance: dict[str, Any], schema: Any) -> Iterator[tuple[Any, Any]]:
    """Yields the schemas for the same instance that it fits, each with a validator that resolves its references."""
    for keyword, target in schema.items():
        if keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            at = validator._resolver
            found = lookup_recursive_ref(at) if keyword == "$recursiveRef" else at.lookup(target)
            yield validator.evolve(schema=found.contents, _resolver=found.resolver), found.contents
    choices = [each for keyword in ("allOf", "anyOf", "oneOf") for each in schema.get(keyword, ())]
    choices += [each for name, each in schema.get("dependentSchemas", {}).items() if name in instance]
    if "if" in schema:
        fits = validator.evolve(schema=schema["if"]).is_valid(instance)
        choices += [schema["if"], schema.get("then", True)] if fits else [schema.get("else", True)]
    yield from ((validator, each) for each in choices if validator.evolve(schema=each).is_valid(instance))


def _multiple_of(validator: Any, step: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "number") and Fraction(repr(instance)) % Fraction(repr(step)):
        yield ValidationError(f"{instance!r} is not a multiple of {step}")


def _or_null(check: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a check that null passes if its schema has OpenAPI's `nullable`. By OpenAPI's text that needs a `type`,
    but generators write it with references and combinations too."""

    def checked(validator: Any, keyword_value: Any, instance: Any, schema: Any) -> Any:
        is_null = instance is None and schema.get("nullable") is True
        return () if is_null else check(validator, keyword_value, instance, schema)

    return checked


def _unique_items(validator: Any, keyword_value: bool, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if (
        keyword_value
        and isinstance(instance, list)
        and len({canonical_json(item) for item in instance}) < len(instance)
    ):
        yield ValidationError("has non-unique elements")


def _count_keywords(check: Callable[..., Any]) -> Callable[..., Any]:
    def counted(validator: Any, keyword_value: Any, instance: Any, schema: Any) -> Any:
        _EFFORT.get().spend(keyword_value)
        return check(validator, keyword_value, instance, schema)

    return counted


_EFFORT: ContextVar[_Effort] = ContextVar("effort")
_OWN_CHECKS: Mapping[str, Callable[..., Any]] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "unevaluatedProperties": _unevaluated_properties,
    "uniqueItems": _unique_items,
    "multipleOf": _multiple_of,
    "divisibleBy": _multiple_of,
}
_DRAFTS: Mapping[str, Any] = {
    str(draft.META_SCHEMA.get("$id") or draft.META_SCHEMA["id"]).rstrip("#").partition("//")[2]: draft
    for draft in (
        Draft3Validator, Draft4Validator, Draft6Validator, Draft7Validator, Draft201909Validator, Draft202012Validator
    )
}  # fmt: skip
"""The library's validators by the address of the draft's schema, without scheme and final `#`."""


def draft_of(schema: Mapping[str, JsonValue], default: Any = Draft202012Validator) -> Any:
    """Returns the library's validator for the draft that the schema names in `$schema`; `default` if it names none or
    an unknown one."""
    return _DRAFTS.get(str(schema.get("$schema", "")).rstrip("#").partition("//")[2], default)


def _bounded(draft: Any) -> Any:
    """Returns the draft's validator with the checks of this module."""
    checks = {word: _OWN_CHECKS.get(word, check) for word, check in draft.VALIDATORS.items()}
    checks |= {word: _or_null(checks[word]) for word in _NULLABLE if word in checks}
    bounded: Any = extend(draft, {word: _count_keywords(check) for word, check in checks.items()})  # type: ignore[no-untyped-call]
    bounded.evolve = _for_inner_schema
    return bounded


def _for_inner_schema(self: Any, **changes: Any) -> Any:
    """Returns the validator of a schema within another. The library's own function takes the library's own validator
    for each schema that names its draft, which the one behind `{"$ref": "#"}` often does."""
    schema = changes.setdefault("schema", self.schema)
    names_draft = isinstance(schema, Mapping) and "$schema" in schema
    validator = _BOUNDED.get(draft_of(schema, None), type(self)) if names_draft else type(self)
    return validator(**{"registry": self._registry, "_resolver": self._resolver, **changes})


_BOUNDED: Mapping[Any, Any] = {draft: _bounded(draft) for draft in _DRAFTS.values()}


def mistakes_in_schema(schema: Mapping[str, JsonValue]) -> list[tuple[_Place, str]]:
    """Returns what makes the schema itself invalid, each mistake with its place; empty if it is valid."""
    try:
        draft_of(schema).check_schema(dict(schema), format_checker=None)
    except InvalidSchema as error:
        return [(tuple(error.absolute_path), error.message)]
    return list(_invalid_patterns(schema, ()))


def _invalid_patterns(part: object, place: _Place) -> Iterator[tuple[_Place, str]]:
    pairs = part.items() if isinstance(part, Mapping) else enumerate(part) if isinstance(part, list) else ()
    for name, inner in pairs:
        patterns = [inner] if name == "pattern" else list(inner) if name == "patternProperties" else []
        for pattern in patterns if isinstance(part, Mapping) else ():
            try:
                compile_pattern(pattern) if isinstance(pattern, str) else None
            except InvalidPattern as error:
                yield (*place, name), f"{pattern!r} is not a pattern of JavaScript: {error}"
        if name not in VALUE_KEYWORDS:
            yield from _invalid_patterns(inner, (*place, name))


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
