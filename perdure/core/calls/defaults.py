"""Fills in the defaults of a schema, so that a reviewer sees and the digest covers what will run."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from pydantic import JsonValue

from perdure.core.calls.jsonb import MAX_DEPTH, InvalidArguments, jsonb_form
from perdure.core.json_schema import follow_reference, schema_errors

MAX_DEFAULTS = 100
"""Arguments that lack more defaults stay as they are."""
MAX_DEFAULT_DEPTH = 6
"""Deeper places are not filled in, because a default can contain its own schema."""
_MAX_PARTS = 100_000
"""Maximum parts of the schema that are read for one set of arguments."""
_MAX_VALIDATED_VALUES = 50_000
"""Maximum values that are validated, all validations together, for defaults that are not all valid together."""
_MAX_REFERENCES = 6
"""Maximum references and alternatives that lead from one part of a schema to the next."""
_Place = tuple[str | int, ...]


class _TooMuch(Exception):
    """Filling in the defaults would take too long."""


def with_defaults(args: Mapping[str, JsonValue], schema: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Returns valid arguments with the defaults of the schema for what they leave out, also within objects and lists.

    A default of null stays out: it means the same. So does a default that jsonb cannot keep, or with which the
    arguments would be invalid. With its own result, the function returns the same again. Arguments for which this would
    take too long stay as they are: those that lack more than `MAX_DEFAULTS` defaults, and large ones whose defaults are
    not all valid.
    """
    try:
        return _filled(deepcopy(dict(args)), schema)
    except _TooMuch:
        return deepcopy(dict(args))


def _filled(args: dict[str, JsonValue], schema: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Returns the arguments with all defaults; each round fills those that the defaults of the round before lack.

    Raises: _TooMuch.
    """
    reader, validated, filled = _Reader(schema), 0, 0
    while missing := reader.missing(args):
        if filled + len(missing) > MAX_DEFAULTS:
            raise _TooMuch
        fits = dict(missing) if not schema_errors(_with(args, missing), schema) else {}
        if not fits:  # some are refused: they are tried one by one
            validated += len(missing) * _count(args)
            if validated > _MAX_VALIDATED_VALUES:
                raise _TooMuch
            for place, default in missing.items():
                if not schema_errors(_with(args, fits | {place: default}), schema):
                    fits[place] = default
        if not fits:
            break
        args, filled = _with(args, fits), filled + len(fits)
    return args


class _Reader:
    """Reads a schema for the defaults that values lack."""

    def __init__(self, schema: Mapping[str, JsonValue]) -> None:
        self._schema = schema
        self._parts = 0

    def missing(self, args: Mapping[str, JsonValue]) -> dict[_Place, JsonValue]:
        """Returns the missing defaults by their place, in the form of jsonb.

        Raises: _TooMuch.
        """
        self._parts = 0
        found: dict[_Place, JsonValue] = {}
        for place, default in self._missing(dict(args), self._schema, ()):
            found.setdefault(place, default)
        return found

    def _missing(self, value: JsonValue, part: object, place: _Place) -> Iterator[tuple[_Place, JsonValue]]:
        if not isinstance(value, dict | list) or len(place) > MAX_DEFAULT_DEPTH:
            return
        for read in self._applied(part):
            if isinstance(value, list):
                for number, item in enumerate(value):
                    yield from self._missing(item, _schema_of_item(read, number), (*place, number))
                continue
            for name, inner in value.items():
                yield from self._missing(inner, _schema_of_property(read, name), (*place, name))
            properties = read.get("properties")
            for name, inner in properties.items() if isinstance(properties, Mapping) else ():
                if name not in value and isinstance(inner, Mapping):
                    default = inner.get("default", follow_reference(inner, self._schema).get("default"))
                    yield from _kept(default, (*place, name))

    def _applied(self, part: object, steps: int = 0) -> Iterator[Mapping[str, Any]]:
        """Yields the schemas that an object or a list must fit: the part, what it refers to, all of `allOf`, and the
        only alternative besides null."""
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise _TooMuch
        if not isinstance(part, Mapping) or steps > _MAX_REFERENCES:
            return
        yield part
        target = follow_reference(part, self._schema)
        inner = [] if target is part else [target]
        for keyword in ("allOf", "anyOf", "oneOf"):
            schemas = part.get(keyword)
            schemas = schemas if isinstance(schemas, list) else []
            if keyword != "allOf":
                schemas = [each for each in schemas if not (isinstance(each, Mapping) and each.get("type") == "null")]
            inner += schemas if keyword == "allOf" or len(schemas) == 1 else []
        for each in inner:
            yield from self._applied(each, steps + 1)


def _count(value: object) -> int:
    """Returns how many values a value has, itself included."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_count, inner))


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


def _kept(default: object, place: _Place) -> Iterator[tuple[_Place, JsonValue]]:
    """Yields the default in the form of jsonb if it has one and is not null."""
    try:
        jsonb_form(place[-1])
        kept = jsonb_form(default, MAX_DEPTH - len(place))
    except InvalidArguments:
        return
    if kept is not None:
        yield place, kept


def _with(args: dict[str, JsonValue], defaults: Mapping[_Place, JsonValue]) -> dict[str, JsonValue]:
    filled: Any = deepcopy(args)
    for place, default in defaults.items():
        value = filled
        for part in place[:-1]:
            value = value[part]
        value[place[-1]] = deepcopy(default)
    return filled  # type: ignore[no-any-return]
