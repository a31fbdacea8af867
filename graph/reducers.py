"""How a patch meets the state: one declared reducer per field, and markers that can take things away.

A reducer that adds cannot express clearing: a removed key or an emptied string comes back with the next merge
(S4-15). So two markers, plain JSON, may stand in a patch of such a field wherever a value may: `DELETE` removes a
key, or resets the whole field to its default; `replace(value)` sets exactly `value`. What is inside `replace` is
never read for markers: wrap data from outside in it. A field that keeps the last value has no markers.

Determinism: reducers are pure, never change their arguments, and compare by canonical JSON, so 1 and true differ.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from pydantic import JsonValue

from contracts.digests import canonical_json
from contracts.errors import InvariantBroken

DELETE: Final[dict[str, JsonValue]] = {"$delete": True}
"""In a patch: remove this key, or reset this field to its default."""


def replace(value: JsonValue) -> dict[str, JsonValue]:
    """In a patch: set exactly `value`, whatever the field's reducer would have made of it."""
    return {"$replace": value}


def is_delete(value: JsonValue) -> bool:
    """Whether `value` is the marker `DELETE`."""
    return isinstance(value, dict) and len(value) == 1 and value.get("$delete") is True


def is_replace(value: JsonValue) -> bool:
    """Whether `value` was made by `replace`."""
    return isinstance(value, dict) and len(value) == 1 and "$replace" in value


def same(one: JsonValue, other: JsonValue) -> bool:
    """Whether two values are the same JSON."""
    return canonical_json(one) == canonical_json(other)


class Reducer(Protocol):
    """How a new value of a field joins the old one. Markers at the top are already resolved by the schema."""

    @property
    def name(self) -> str:
        """What the manifest calls it."""
        ...

    def merge(self, old: JsonValue, new: JsonValue) -> JsonValue:
        """The field's value after a patch brought `new`."""
        ...

    def delta(self, before: JsonValue, after: JsonValue) -> JsonValue:
        """A patch value that turns `before` into `after`, and adds rather than replaces where it can."""
        ...


@dataclass(frozen=True, slots=True)
class LastValue:
    """The newest value stands."""

    name: str = "last_value"

    def merge(self, old: JsonValue, new: JsonValue) -> JsonValue:
        """The new value."""
        return new

    def delta(self, before: JsonValue, after: JsonValue) -> JsonValue:
        """`after` itself."""
        return after


@dataclass(frozen=True, slots=True)
class Additive:
    """Lists are concatenated, numbers are summed (S1-08): entries of parallel branches all survive."""

    name: str = "additive"

    def merge(self, old: JsonValue, new: JsonValue) -> JsonValue:
        """Old and new together.

        Raises: InvariantBroken `patch_refused` where the two are neither lists nor numbers.
        """
        if isinstance(old, list) and isinstance(new, list):
            return [*old, *new]
        if isinstance(old, int | float) and isinstance(new, int | float):
            return old + new
        raise InvariantBroken(
            "patch_refused", f"An additive field takes lists or numbers, not {_kind(new)} on {_kind(old)}."
        )

    def delta(self, before: JsonValue, after: JsonValue) -> JsonValue:
        """What was appended; the whole value where something else happened."""
        if isinstance(before, list) and isinstance(after, list) and same(after[: len(before)], before):
            return after[len(before) :]
        if isinstance(before, int) and isinstance(after, int) and not isinstance(after, bool):
            return after - before
        return replace(after)


@dataclass(frozen=True, slots=True)
class DeepMerge:
    """Objects merge key by key, lists join without repeats, empty never overwrites (S4-14)."""

    name: str = "deep_merge"

    def merge(self, old: JsonValue, new: JsonValue) -> JsonValue:
        """Old and new merged; markers at any depth are obeyed."""
        if _is_empty(new):
            return old
        if isinstance(new, dict):
            return _merge_objects(old if isinstance(old, dict) else {}, new)
        if isinstance(new, list):
            return _without_repeats([*(old if isinstance(old, list) else []), *new])
        return new

    def delta(self, before: JsonValue, after: JsonValue) -> JsonValue:
        """Only what differs, at the depth where it differs."""
        if isinstance(before, dict) and isinstance(after, dict):
            changed: dict[str, JsonValue] = {
                key: self.delta(before[key], value) if key in before else replace(value)
                for key, value in after.items()
                if key not in before or not same(before[key], value)
            }
            changed |= {key: DELETE for key in before if key not in after}
            return replace(after) if is_delete(changed) or is_replace(changed) else changed
        if isinstance(before, list) and isinstance(after, list):
            appended = after[len(before) :]
            if same(self.merge(before, appended), after):
                return appended
        return replace(after)


def _merge_objects(old: dict[str, JsonValue], new: dict[str, JsonValue]) -> dict[str, JsonValue]:
    merged = dict(old)
    for key, value in new.items():
        if is_delete(value):
            merged.pop(key, None)
        elif isinstance(value, dict) and is_replace(value):
            merged[key] = value["$replace"]
        elif key not in merged and _is_empty(value):
            merged[key] = value
        else:
            merged[key] = DEEP_MERGE.merge(merged.get(key), value)
    return merged


def _without_repeats(values: list[JsonValue]) -> list[JsonValue]:
    return list({canonical_json(value): value for value in values}.values())


def _is_empty(value: JsonValue) -> bool:
    return value is None or value == "" or value == [] or value == {}


def _kind(value: JsonValue) -> str:
    return type(value).__name__


LAST_VALUE: Final = LastValue()
ADDITIVE: Final = Additive()
DEEP_MERGE: Final = DeepMerge()
