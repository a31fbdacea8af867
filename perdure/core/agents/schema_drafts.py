"""JSON Schemas of every draft in the words of draft 2020-12, which model providers read.

The result matches whatever the original matches. What 2020-12 cannot say is left out, so the result may match more.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urldefrag, urljoin

from perdure.core.json_schema import VALUE_KEYWORDS, schemas_within

_TYPES: Final = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))
_BY_NAME: Final = frozenset(("$defs", "definitions", "dependentSchemas", "patternProperties", "properties"))
"""Keywords whose values have a schema for each name."""
_IDENTITY: Final = frozenset(
    ("$anchor", "$comment", "$dynamicAnchor", "$id", "$recursiveAnchor", "$schema", "$vocabulary", "disallow")
)
"""Keywords that are left out: those that name a schema, and one that only excludes values."""
_BOUNDS: Final = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))
_POINTERS: Final = ("$dynamicRef", "$recursiveRef", "$ref")


def in_2020_12(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema in draft 2020-12, with each reference as a pointer from its top."""
    places = dict(_named_places(schema, "", "#"))
    translated: dict[str, Any] = _translate(schema, "", places)
    return translated


def _named_places(part: Any, base: str, place: str) -> Iterator[tuple[str, str]]:
    """Yields the name of each schema that has one, an address or an anchor at its address, with the pointer to it."""
    if isinstance(part, list):
        for number, each in enumerate(part):
            yield from _named_places(each, base, f"{place}/{number}")
    if not isinstance(part, Mapping):
        return
    base, own = _base_of(part, base)
    if place == "#" or own:
        yield base, place
    names = [part.get(keyword) for keyword in ("$anchor", "$dynamicAnchor")]
    names += [own[1:]] if own.startswith("#") else []
    yield from ((f"{base}#{name}", place) for name in names if isinstance(name, str))
    for within, value in schemas_within(part):
        yield from _named_places(value, base, "/".join((place, *(escape(str(name)) for name in within))))


def _base_of(part: Mapping[str, Any], base: str) -> tuple[str, str]:
    """Returns the address against which references within `part` are resolved, and the part's own name for itself."""
    own = part.get("$id", part.get("id"))
    if not isinstance(own, str):
        return base, ""
    return (base, own) if own.startswith("#") else (urldefrag(urljoin(base, own)).url, own)


def _translate(part: Any, base: str, places: Mapping[str, str]) -> Any:
    if isinstance(part, list):
        return [_translate(each, base, places) for each in part]
    if not isinstance(part, Mapping):
        return part
    base, _ = _base_of(part, base)
    new: dict[str, Any] = {}
    for keyword, value in part.items():
        if keyword in VALUE_KEYWORDS:
            new[keyword] = value
        elif keyword in _BY_NAME and isinstance(value, Mapping):
            new[keyword] = {name: _translate(each, base, places) for name, each in value.items()}
        elif keyword in _POINTERS and isinstance(value, str):
            new["$ref"] = _pointer(value, base, places)
        elif keyword not in _IDENTITY and (keyword != "id" or not isinstance(value, str)):
            new[keyword] = _translate(value, base, places)
    return _with_renamed(_with_types(_with_bounds(_with_required(new, part))))


def _pointer(reference: str, base: str, places: Mapping[str, str]) -> str:
    """Returns the pointer of a reference; a reference to something outside is unchanged."""
    address, fragment = urldefrag(urljoin(base, reference) if base else reference)
    if fragment.startswith("/") or not fragment:
        place = places.get(address)
        return f"{place}{fragment}" if place is not None else reference
    return places.get(f"{address}#{fragment}", reference)


def _with_required(new: dict[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """Moves draft-03's `required: true` of a property to the object that has it."""
    if isinstance(new.get("required"), bool):
        del new["required"]
    properties = part.get("properties")
    if isinstance(properties, Mapping):
        named = [
            name for name, each in properties.items() if isinstance(each, Mapping) and each.get("required") is True
        ]
        if named:
            new["required"] = [*dict.fromkeys([*new.get("required", ()), *named])]
    return new


def _with_bounds(new: dict[str, Any]) -> dict[str, Any]:
    """Makes a number of draft-04's `exclusiveMinimum: true`, and of its opposite."""
    for exclusive, bound in _BOUNDS:
        if isinstance(new.get(exclusive), bool) and new.pop(exclusive) and bound in new:
            new[exclusive] = new.pop(bound)
    return new


def _with_types(new: dict[str, Any]) -> dict[str, Any]:
    """Makes alternatives of the schemas in `type` (draft-03). An unknown type is any type."""
    if "type" not in new:
        return new
    kinds = new["type"] if isinstance(new["type"], list) else [new["type"]]
    schemas = [each for each in kinds if isinstance(each, dict)]
    names = [each for each in kinds if not isinstance(each, dict)]
    if not all(isinstance(name, str) and name in _TYPES for name in names):
        del new["type"]
    elif schemas:
        del new["type"]
        _require(new, {"anyOf": [*({"type": name} for name in names), *schemas]})
    return new


def _with_renamed(new: dict[str, Any]) -> dict[str, Any]:
    """Renames what later drafts renamed: `divisibleBy`, `extends` and `dependencies`."""
    if "divisibleBy" in new:
        new.setdefault("multipleOf", new.pop("divisibleBy"))
    extended = new.pop("extends", [])
    for each in extended if isinstance(extended, list) else [extended]:
        _require(new, each)
    if isinstance(new.get("items"), list):
        new.pop("additionalItems", None)
    dependencies = new.pop("dependencies", {})
    for name, needed in dependencies.items() if isinstance(dependencies, Mapping) else ():
        if isinstance(needed, str | list):
            names = [needed] if isinstance(needed, str) else needed
            new.setdefault("dependentRequired", {})[name] = names
        else:
            new.setdefault("dependentSchemas", {})[name] = needed
    return new


def _require(new: dict[str, Any], schema: Any) -> None:
    new["allOf"] = [*new.get("allOf", ()), schema]


def escape(part: str) -> str:
    """Returns a name as a part of a JSON pointer."""
    return part.replace("~", "~0").replace("/", "~1")
