"""Defaults of parameters as JSON and as texts that are equal in every process: without the order of sets and the
addresses of objects, which each process has for itself."""

import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import BaseModel, RootModel

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def in_order(encoded: Any, value: object) -> Any:
    """Returns the JSON of `value` with the elements of its sets in order, at any depth.

    What a serializer of the author's has made of a value is left as it is.
    """
    if isinstance(value, RootModel):
        return in_order(encoded, value.root)
    if isinstance(encoded, list) and isinstance(value, Set | list | tuple) and len(encoded) == len(value):
        ordered = [in_order(part, each) for part, each in zip(encoded, value, strict=True)]
        return _sorted(ordered) if isinstance(value, Set) else ordered
    if not isinstance(encoded, dict):
        return encoded
    if isinstance(value, Mapping):
        same = len(encoded) == len(value)
        return (
            {k: in_order(part, each) for (k, part), each in zip(encoded.items(), value.values(), strict=True)}
            if same
            else encoded
        )
    inner = dict(_named_values(value))
    return {name: in_order(part, inner[name]) if name in inner else part for name, part in encoded.items()}


def _sorted(parts: list[Any]) -> list[Any]:
    try:
        return sorted(parts)
    except TypeError:  # objects, or values of several types
        return sorted(parts, key=repr)


def _named_values(value: object) -> Iterator[tuple[str, object]]:
    """Yields the fields of a model or a dataclass by the names that they have in JSON."""
    if isinstance(value, BaseModel):
        known = type(value).model_fields
        for name, each in value:
            yield name, each
            if name in known and (alias := known[name].serialization_alias or known[name].alias):
                yield alias, each
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((each.name, getattr(value, each.name)) for each in fields(value))


def has_unordered_elements(value: object) -> bool:
    """Returns whether elements of a set are sets themselves, or tuples of them. `sorted` does not order them."""
    return isinstance(value, Set) and any(map(_has_set, value))


def _has_set(value: object) -> bool:
    return isinstance(value, Set) or (isinstance(value, tuple) and any(map(_has_set, value)))


def stable_text(value: object) -> str:
    """Returns a text for a default, without the order of sets and the addresses of objects, which each process has
    for itself."""
    name = type(value).__qualname__
    if is_dataclass(value) and not isinstance(value, type):
        return f"{name}({stable_text({each.name: getattr(value, each.name) for each in fields(value)})})"
    if isinstance(value, BaseModel):
        return f"{name}({stable_text(dict(value))})"
    if isinstance(value, Mapping):
        return f"{name}({sorted((stable_text(key), stable_text(each)) for key, each in value.items())})"
    if isinstance(value, list | tuple):
        return f"{name}({list(map(stable_text, value))})"
    if isinstance(value, set | frozenset):
        return f"{name}({sorted(map(stable_text, value))})"
    try:
        return _ADDRESS.sub("", repr(value))
    except Exception:  # an author's class can raise anything
        return name
