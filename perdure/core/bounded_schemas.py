"""Validators of JSON Schema whose effort is bounded.

Each is the library's for a draft, with own checks where the library's take unlimited time or read a keyword in another
way than its authors mean.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any
from urllib.parse import urljoin

from attrs import evolve
from jsonschema import (
    Draft3Validator,
    Draft4Validator,
    Draft6Validator,
    Draft7Validator,
    Draft201909Validator,
    Draft202012Validator,
)
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend
from pydantic import JsonValue
from referencing import Registry
from referencing.jsonschema import lookup_recursive_ref

from perdure.contracts.values import canonical_json
from perdure.core.patterns import compile_pattern

_NULLABLE = ("type", "enum", "const", "$ref", "allOf", "anyOf", "oneOf")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_NAMES = frozenset({"$id", "id", "$anchor", "$dynamicAnchor"})
"""Keywords that name a schema within another, so that references can have its name."""
_ENTRIES_A_CHECK = 10
"""A keyword with many entries (`enum`, `required`) has one more count per this many entries."""
_NOTHING_OUTSIDE: Registry[bool | Mapping[str, Any]] = Registry()
"""A registry without other schemas. Without it, jsonschema fetches a schema's references to other hosts."""


@dataclass(slots=True)
class Effort:
    """The remaining effort of one validation, or of several."""

    checks: int
    until: float
    """The deadline for patterns, in time of this thread, so that a busy machine refuses nothing."""
    ends: float = math.inf
    """The deadline for everything, in the same time."""
    valid: dict[tuple[object, ...], object] = field(default_factory=dict)
    """The objects and lists that were valid, with their schemas and the scope of these. They are not validated again,
    so they must not be changed."""

    @classmethod
    def starting(
        cls, checks: int, pattern_seconds: float, seconds: float = math.inf, before: "Effort | None" = None
    ) -> "Effort":
        """Returns an effort that starts now. It knows what was valid with the earlier one, `before`."""
        now = time.thread_time()
        return cls(checks, now + pattern_seconds, now + seconds, before.valid if before else {})

    def spend(self, keyword_value: object = None) -> None:
        """Counts one keyword and its entries.

        Raises: TooMuch.
        """
        entries = len(keyword_value) if isinstance(keyword_value, list | dict) else 0
        self.checks -= 1 + entries // _ENTRIES_A_CHECK
        if self.checks < 0 or time.thread_time() > self.ends:
            raise TooMuch


class TooMuch(Exception):
    """The validation evaluated more keywords, or took longer, than allowed."""


@contextmanager
def spending(effort: Effort) -> Iterator[None]:
    """Validations within have this effort together."""
    token = _EFFORT.set(effort)
    try:
        yield
    finally:
        _EFFORT.reset(token)


def _matches(pattern: str, text: str) -> bool:
    """Returns whether the pattern is found.

    Raises: TimeoutError after the deadline of this validation; InvalidPattern.
    """
    left = _EFFORT.get().until - time.thread_time()
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
    yield from ((each, each.schema) for each in referred_schemas(validator.evolve(schema=schema)))
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


def _each_part_once(descend: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that validates each object and each list once, if it is valid."""

    def once(
        self: Any, instance: Any, schema: Any, path: Any = None, schema_path: Any = None, resolver: Any = None
    ) -> Any:
        errors = descend(self, instance, schema, path, schema_path, resolver)
        if not isinstance(instance, dict | list) or not isinstance(schema, dict):
            return errors
        scope = resolver or self._resolver
        key = (id(instance), id(schema), type(self), scope._base_uri, scope._previous)
        effort = _EFFORT.get()
        if key not in effort.valid:
            return _remember(errors, effort, key, (instance, schema))
        effort.spend()
        return iter(())

    return once


def _remember(
    errors: Iterator[ValidationError], effort: Effort, key: tuple[object, ...], kept: object
) -> Iterator[ValidationError]:
    """Yields the errors. If there are none, keeps the part and its schema, so that nothing else gets their ids."""
    first = next(errors, None)
    if first is None:
        effort.valid[key] = kept
    else:
        yield first
        yield from errors


_EFFORT: ContextVar[Effort] = ContextVar("effort")
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
    bounded.evolve, bounded.descend = _for_inner_schema, _each_part_once(bounded.descend)
    return bounded


def _for_inner_schema(self: Any, **changes: Any) -> Any:
    """Returns the validator of a schema within another. The library's own function takes the library's own validator
    for each schema that names its draft, which the one behind `{"$ref": "#"}` often does."""
    schema = changes.setdefault("schema", self.schema)
    names_draft = isinstance(schema, Mapping) and "$schema" in schema
    validator = _BOUNDED.get(draft_of(schema, None), type(self)) if names_draft else type(self)
    inner = validator(**{"registry": self._registry, "_resolver": self._resolver, **changes})
    if not inner._validators:  # else its keywords are counted
        _EFFORT.get().spend()
    return inner


_BOUNDED: Mapping[Any, Any] = {draft: _bounded(draft) for draft in _DRAFTS.values()}


def validator_of(schema: Mapping[str, JsonValue]) -> Any:
    """Returns the validator of a whole schema. It is used with an effort (`spending`)."""
    validator = _BOUNDED[draft_of(schema)](dict(schema), registry=_NOTHING_OUTSIDE)
    if not _has_names(schema):
        return validator
    try:  # read once: the library would read the schema again for each reference to a name
        registry = validator._resolver._registry.crawl()
    except Exception:  # not a valid schema; what needs no name can still be validated
        return validator
    return validator.evolve(_resolver=evolve(validator._resolver, registry=registry))


def _has_names(schema: object) -> bool:
    pending = [schema]
    while pending:
        each = pending.pop()
        if isinstance(each, Mapping):
            if not _NAMES.isdisjoint(each):
                return True
            pending += each.values()
        elif isinstance(each, list):
            pending += each
    return False


def inner_validator(validator: Any, part: object) -> Any:
    """Returns the validator of a schema within that of `validator`."""
    inner = validator.evolve(schema=part)
    own = inner.ID_OF(part)
    if not isinstance(own, str):
        return inner
    scope = validator._resolver
    return inner.evolve(_resolver=evolve(scope, base_uri=urljoin(scope._base_uri, own)))


def applied_keywords(validator: Any) -> Mapping[str, Any]:
    """Returns the keywords of the validator's schema. Up to draft-07 `$ref` is the only one."""
    schema = validator.schema
    return dict(type(validator)._APPLICABLE_VALIDATORS(schema)) if isinstance(schema, Mapping) else {}


def referred_schemas(validator: Any) -> Iterator[Any]:
    """Yields the validators of the schemas that the validator's schema refers to.

    Raises: Unresolvable.
    """
    words = applied_keywords(validator)
    for keyword in _REFERENCES:
        if isinstance(target := words.get(keyword), str):
            at = validator._resolver
            found = lookup_recursive_ref(at) if keyword == "$recursiveRef" else at.lookup(target)
            yield validator.evolve(schema=found.contents, _resolver=found.resolver)
