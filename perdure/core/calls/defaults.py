"""Fills in the defaults of a schema, so that a reviewer sees and the digest covers what will run.

The schema is read with the validator's own rules for references and drafts (core/bounded_schemas.py).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from pydantic import JsonValue

from perdure.contracts.values import canonical_json
from perdure.core.bounded_schemas import (
    Effort,
    TooMuch,
    applied_keywords,
    inner_validator,
    referred_schemas,
    spending,
    validator_of,
)
from perdure.core.calls.jsonb import MAX_DEPTH, InvalidArguments, jsonb_form

MAX_DEFAULTS = 1_000
"""Arguments that lack more defaults stay as they are."""
MAX_DEFAULT_DEPTH = 6
"""Deeper places are not filled in, because a default can contain its own schema."""
MAX_CHECKS, MAX_SECONDS = 60_000, 0.25
"""The effort of filling in: parts of the schema that are read, keywords that are evaluated, and characters that are
filled in. So many checks take 0.2 s at most for ordinary schemas (measured). The seconds, in time of the thread, end
those whose every check is slow."""
_ITEMS_A_CHECK, _CHARACTERS_A_CHECK = 20, 10
_MAX_REFERENCES = 6
"""Maximum references and alternatives that lead from one part of a schema to the next."""
_Place = tuple[str | int, ...]
_Missing = list[tuple[_Place, JsonValue]]


def with_defaults(
    args: Mapping[str, JsonValue], schema: Mapping[str, JsonValue], checked: Effort | None = None
) -> dict[str, JsonValue]:
    """Returns valid arguments with the defaults of the schema for what they leave out, also within objects and lists.

    A default of null stays out: it means the same. So does a default that jsonb cannot keep, or with which the
    arguments would be invalid. With its own result, the function returns the same again. Arguments for which this would
    take too long stay as they are: those that lack more than `MAX_DEFAULTS` defaults, and those whose schema takes more
    than `MAX_CHECKS` steps. `checked` is the effort with which the arguments were validated. The result shares values
    with `args`.
    """
    effort = Effort.starting(MAX_CHECKS, MAX_SECONDS, MAX_SECONDS, checked)
    try:
        with spending(effort):
            return _Filler(schema, effort).filled(dict(args))
    except (TooMuch, TimeoutError):
        return dict(args)


class _Filler:
    """Fills in the defaults of one schema.

    Its methods raise TooMuch or TimeoutError if the effort is spent.
    """

    def __init__(self, schema: Mapping[str, JsonValue], effort: Effort) -> None:
        self._root = validator_of(schema)
        self._effort = effort
        self._filled = 0
        self._own_defaults: dict[tuple[int, int], tuple[object, JsonValue, int]] = {}

    def filled(self, args: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """Returns the arguments with all defaults; each round fills those that the defaults of the round before
        lack."""
        while missing := list(self._missing_in(args).items()):
            if self._filled + len(missing) > MAX_DEFAULTS:
                raise TooMuch
            filled = self._with_fitting(args, missing)
            if filled is args:
                break
            args = filled
        return args

    def _with_fitting(self, args: dict[str, JsonValue], missing: _Missing) -> dict[str, JsonValue]:
        """Returns the arguments with the defaults with which they are valid. If all together are refused, they are
        tried in halves."""
        grown: dict[str, JsonValue] = self._with(args, dict(missing))
        if _is_valid(self._root, grown):
            self._filled += len(missing)
            return grown
        if len(missing) == 1:
            return args
        half = len(missing) // 2
        return self._with_fitting(self._with_fitting(args, missing[:half]), missing[half:])

    def _with(self, value: Any, defaults: Mapping[_Place, JsonValue]) -> Any:
        """Returns a copy with the defaults; what has none within it is shared."""
        copy = value.copy()
        self._count(copy)
        inner: dict[str | int, dict[_Place, JsonValue]] = defaultdict(dict)
        for place, default in defaults.items():
            inner[place[0]][place[1:]] = default
        for name, within in inner.items():
            copy[name] = within[()] if () in within else self._with(copy[name], within)
        return copy

    def _missing_in(self, args: dict[str, JsonValue]) -> dict[_Place, JsonValue]:
        """Returns the missing defaults by their place, in the form of jsonb."""
        found: dict[_Place, JsonValue] = {}
        for place, default in self._missing(args, self._root, ()):
            found.setdefault(place, default)
        return found

    def _missing(self, value: JsonValue, validator: Any, place: _Place) -> Iterator[tuple[_Place, JsonValue]]:
        if len(place) > MAX_DEFAULT_DEPTH:
            return
        for at in self._applied(value, validator):
            words = applied_keywords(at)
            self._count(value)
            for name, item in value.items() if isinstance(value, dict) else enumerate(value):  # type: ignore[arg-type]
                if isinstance(item, dict | list):
                    part = _schema_of_item(words, name) if isinstance(name, int) else _schema_of_property(words, name)
                    if isinstance(part, Mapping):
                        yield from self._missing(item, inner_validator(at, part), (*place, name))
            if isinstance(value, dict):
                yield from self._missing_properties(value, at, words.get("properties"), place)

    def _missing_properties(
        self, value: dict[str, JsonValue], at: Any, properties: object, place: _Place
    ) -> Iterator[tuple[_Place, JsonValue]]:
        self._count(properties)
        for name, inner in properties.items() if isinstance(properties, Mapping) else ():
            if name not in value and isinstance(inner, Mapping):
                default = self._default_of(at, inner, len(place) + 1)
                if default is not None and _is_kept(name):
                    yield (*place, name), default

    def _default_of(self, at: Any, part: Mapping[str, Any], depth: int) -> JsonValue:
        """Returns the default of a property in the form of jsonb. Returns None if it has none, it is too deep, or its
        own schema refuses it."""
        key = id(part), depth
        if key not in self._own_defaults:
            default = self._read_default(inner_validator(at, part), depth)
            size = 0 if default is None else len(canonical_json(default)) // _CHARACTERS_A_CHECK
            self._own_defaults[key] = part, default, size
        _, default, size = self._own_defaults[key]
        self._effort.checks -= size
        self._effort.spend()
        return default

    def _read_default(self, validator: Any, depth: int) -> JsonValue:
        default, at = None, validator
        for _ in range(_MAX_REFERENCES):
            self._effort.spend()
            words = applied_keywords(at)
            default = words.get("default")
            if "default" in words or (at := next(_referred(at), None)) is None:
                break
        try:
            kept = jsonb_form(default, MAX_DEPTH - depth)
        except InvalidArguments:
            return None
        return kept if kept is not None and _is_valid(validator, kept) else None

    def _applied(self, value: JsonValue, validator: Any, steps: int = 0) -> Iterator[Any]:
        """Yields the validators of the schemas that an object or a list must fit. They are the part, what it refers to,
        all of `allOf`, and the only alternative that is not ruled out."""
        self._effort.spend()
        if not isinstance(validator.schema, Mapping) or steps > _MAX_REFERENCES:
            return
        yield validator
        inner, choices = _combined(validator)
        for each in inner:
            yield from self._applied(value, each, steps + 1)
        for alternatives in choices:
            possible = [each for each in alternatives if not self._is_ruled_out(value, each)]
            if len(possible) == 1:
                yield from self._applied(value, possible[0], steps + 1)

    def _is_ruled_out(self, value: JsonValue, validator: Any, steps: int = 0) -> bool:
        """Returns whether a value cannot fit, whatever is filled in and whatever the tool's types convert.

        It is an object or a list where the schema wants another type, or one of its properties has another `const` or
        `enum`. Another type of a text or a number rules out nothing, because types convert one to the other.
        """
        self._effort.spend()
        if steps > _MAX_REFERENCES:
            return False
        words = applied_keywords(validator)
        if _has_other_kind(value, validator, words):
            return True
        if isinstance(value, dict) and isinstance(properties := words.get("properties"), Mapping):
            self._count(value)
            tags = ((item, properties.get(name)) for name, item in value.items() if not isinstance(item, dict | list))
            parts = ((tag, inner_validator(validator, part)) for tag, part in tags if isinstance(part, Mapping))
            if any(self._is_ruled_out(tag, part, steps + 1) for tag, part in parts):
                return True
        inner, choices = _combined(validator)
        return any(self._is_ruled_out(value, each, steps + 1) for each in inner) or any(
            all(self._is_ruled_out(value, each, steps + 1) for each in alternatives) for alternatives in choices
        )

    def _count(self, value: object) -> None:
        """Counts a value that is read once, with what is within it."""
        self._effort.checks -= len(value) // _ITEMS_A_CHECK if isinstance(value, dict | list) else 0
        self._effort.spend()


def _is_valid(validator: Any, value: JsonValue) -> bool:
    """Returns whether a value is valid; if that cannot be found out, it is not.

    Raises: TooMuch or TimeoutError if the effort is spent.
    """
    try:
        return not any(validator.descend(value, validator.schema, resolver=validator._resolver))
    except (TooMuch, TimeoutError):
        raise
    except Exception:  # the schema is invalid there
        return False


def _has_other_kind(value: JsonValue, validator: Any, words: Mapping[str, Any]) -> bool:
    """Returns whether an object or a list has another type than the schema wants, or another value is none of `const`
    or `enum`, which are all of its type."""
    if isinstance(value, dict | list):  # the type of a fixed list can be a NamedTuple, which also reads an object
        fixed = "type" in words and "prefixItems" not in words
        return fixed and not _is_valid(inner_validator(validator, {"type": words["type"]}), value)
    listed = {"const": [words.get("const")], "enum": words.get("enum")}
    return any(
        keyword in words and keyword in validator.VALIDATORS and value not in wanted
        for keyword, wanted in listed.items()
        if isinstance(wanted, list) and all(type(each) is type(value) for each in wanted)
    )


def _combined(validator: Any) -> tuple[Iterable[Any], Iterable[Iterable[Any]]]:
    """Returns the validators of the schemas all of which the same value must fit, and those of the alternatives."""
    words = applied_keywords(validator)
    parts = {
        keyword: (inner_validator(validator, each) for each in words[keyword] if isinstance(each, Mapping | bool))
        for keyword in ("allOf", "anyOf", "oneOf")
        if isinstance(words.get(keyword), list)
    }
    return chain(_referred(validator), parts.pop("allOf", ())), parts.values()


def _is_kept(name: str) -> bool:
    try:
        jsonb_form(name)
    except InvalidArguments:
        return False
    return True


def _referred(validator: Any) -> Iterator[Any]:
    try:
        yield from referred_schemas(validator)
    except Exception:  # of a pointer into a list or a number the library raises many kinds
        return


def _schema_of_item(read: Mapping[str, Any], number: int) -> object:
    """Returns the schema of a list's item. Before draft 2020-12, `items` could be a list."""
    items = read.get("items")
    first, rest = (items, read.get("additionalItems")) if isinstance(items, list) else (read.get("prefixItems"), items)
    return first[number] if isinstance(first, list) and number < len(first) else rest


def _schema_of_property(read: Mapping[str, Any], name: str) -> object:
    """Returns the schema of an object's property. If patterns of names have schemas, others have none here."""
    properties = read.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    return None if read.get("patternProperties") else read.get("additionalProperties")
