"""The state of a graph: its fields, their defaults, and the way patches merge into them.

Every topology has the kernel's five fields and adds others. All values are JSON, because a state crosses pauses,
deploys and processes as text. Nodes receive the state to read. They change it only with the patch that they return.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from pydantic import JsonValue

from perdure.contracts.errors import InvariantBroken
from perdure.contracts.values import canonical_json

# A reducer that adds cannot clear a value: a removed key or an emptied string comes back with the next merge. So a
# patch of such a field can contain two markers, which are plain JSON, wherever a value can be. `DELETE` removes a key,
# or resets the whole field to its default. `replace(value)` sets exactly `value`. The content of `replace` is never
# read for markers, so external data must be wrapped in it. A field that keeps the last value has no markers.
#
# Determinism: reducers are pure and never change their arguments. They compare by canonical JSON, so 1 and true differ.
DELETE: Final[dict[str, JsonValue]] = {"$delete": True}
"""The marker in a patch that removes a key or resets a field to its default."""
_SCALARS = frozenset({str, int, bool, type(None)})


def replace(value: JsonValue) -> dict[str, JsonValue]:
    """Returns the marker that sets exactly `value`, whatever the field's reducer is."""
    return {"$replace": value}


def is_delete(value: JsonValue) -> bool:
    """Returns whether `value` is the marker `DELETE`."""
    return isinstance(value, dict) and len(value) == 1 and value.get("$delete") is True


def is_replace(value: JsonValue) -> bool:
    """Returns whether `value` was made by `replace`."""
    return isinstance(value, dict) and len(value) == 1 and "$replace" in value


def same_json(one: JsonValue, other: JsonValue) -> bool:
    """Returns whether two values are the same JSON."""
    return canonical_json(one) == canonical_json(other)


class Reducer(Protocol):
    """The rule that merges a new value of a field into the old one. The schema has already resolved markers at the top
    level."""

    @property
    def name(self) -> str:
        """The reducer's name in the manifest."""
        ...

    def merge(self, old: JsonValue, new: JsonValue) -> JsonValue:
        """Returns the field's value after a patch with `new`."""
        ...

    def delta(self, before: JsonValue, after: JsonValue) -> JsonValue:
        """Returns a patch value that turns `before` into `after`. It adds rather than replaces if possible."""
        ...


@dataclass(frozen=True, slots=True)
class LastValue:
    """A reducer that keeps the newest value."""

    name: str = "last_value"

    def merge(self, old: JsonValue, new: JsonValue) -> JsonValue:
        """Returns the new value."""
        return new

    def delta(self, before: JsonValue, after: JsonValue) -> JsonValue:
        """Returns `after`."""
        return after


@dataclass(frozen=True, slots=True)
class AdditiveReducer:
    """A reducer that concatenates lists and sums numbers, so that the entries of all parallel branches are kept."""

    name: str = "additive"

    def merge(self, old: JsonValue, new: JsonValue) -> JsonValue:
        """Returns the concatenation or the sum.

        Raises: InvariantBroken `patch_refused` if the values are neither two lists nor two numbers.
        """
        if isinstance(old, list) and isinstance(new, list):
            return [*old, *new]
        if isinstance(old, int | float) and isinstance(new, int | float):
            return old + new
        raise InvariantBroken(
            "patch_refused", f"An additive field takes lists or numbers, not {_kind(new)} on {_kind(old)}."
        )

    def delta(self, before: JsonValue, after: JsonValue) -> JsonValue:
        """Returns the appended part, or a replacement of the whole value after any other change."""
        if isinstance(before, list) and isinstance(after, list) and same_json(after[: len(before)], before):
            return after[len(before) :]
        if isinstance(before, int) and isinstance(after, int) and not isinstance(after, bool):
            return after - before
        return replace(after)


@dataclass(frozen=True, slots=True)
class DeepMerge:
    """A reducer that merges objects key by key and joins lists without repeats. An empty value overwrites nothing."""

    name: str = "deep_merge"

    def merge(self, old: JsonValue, new: JsonValue) -> JsonValue:
        """Returns the merged value. Markers at any depth apply."""
        if _is_empty(new):
            return old
        if isinstance(new, dict):
            return _merge_objects(old if isinstance(old, dict) else {}, new)
        if isinstance(new, list):
            return _without_repeats([*(old if isinstance(old, list) else []), *new])
        return new

    def delta(self, before: JsonValue, after: JsonValue) -> JsonValue:
        """Returns only the differences, at the depth at which they are."""
        if isinstance(before, dict) and isinstance(after, dict):
            changed: dict[str, JsonValue] = {
                key: self.delta(before[key], value) if key in before else replace(value)
                for key, value in after.items()
                if key not in before or not same_json(before[key], value)
            }
            changed |= {key: DELETE for key in before if key not in after}
            return replace(after) if is_delete(changed) or is_replace(changed) else changed
        if isinstance(before, list) and isinstance(after, list):
            appended = after[len(before) :]
            if same_json(self.merge(before, appended), after):
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
ADDITIVE: Final = AdditiveReducer()
DEEP_MERGE: Final = DeepMerge()


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a state."""

    name: str
    default: JsonValue = None
    """The default, which is copied for every run."""
    reducer: Reducer = LAST_VALUE


KERNEL_FIELDS = (
    Field("status", "running"),
    Field("error", None),
    Field("current_node", None),
    Field("pending_requests", []),
    Field("messages", []),
)
"""The fields that the engine reads in any state. `status` is a word of the topology's vocabulary. `error` is a problem
as an object, or None. `pending_requests` are the requests that a pause waits for, `messages` the messages of this turn.
The engine itself writes `current_node` when a node starts. A topology can give `status` another default and `messages`
another reducer."""


@dataclass(frozen=True, slots=True)
class StateSchema:
    """The fields of a topology's state, including the kernel's."""

    own: tuple[Field, ...] = ()
    """The topology's fields. A field with the name of a kernel field replaces it."""
    fields: tuple[Field, ...] = field(init=False)
    """All fields, the kernel's first."""
    _by_name: dict[str, Field] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name = {one.name: one for one in (*KERNEL_FIELDS, *self.own)}
        object.__setattr__(self, "_by_name", by_name)
        object.__setattr__(self, "fields", tuple(by_name.values()))

    def initial(self, **overrides: JsonValue) -> dict[str, JsonValue]:
        """Returns a new state that shares no value with another run.

        Raises: InvariantBroken `patch_refused` for an unknown field or a value that is not JSON.
        """
        self.check(overrides, "the initial state")
        return {one.name: _copy(overrides.get(one.name, one.default)) for one in self.fields}

    def resume_state(self, carried: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Returns a complete state from a stored one. A pause can outlive deploys: new fields take their default, and
        removed fields are dropped."""
        return {one.name: _copy(carried.get(one.name, one.default)) for one in self.fields}

    def apply(self, state: Mapping[str, JsonValue], patch: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Returns the state after a checked patch; neither argument changes."""
        after = dict(state)
        for name, value in patch.items():
            if not self.is_shared(name):
                after[name] = value
            elif is_delete(value):
                after[name] = _copy(self._by_name[name].default)
            elif isinstance(value, dict) and is_replace(value):
                after[name] = value["$replace"]
            else:
                after[name] = self._by_name[name].reducer.merge(state[name], value)
        return after

    def delta(self, before: Mapping[str, JsonValue], after: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Returns a patch that turns `before` into `after`, with the reducer of each field."""
        return {
            one.name: one.reducer.delta(before[one.name], after[one.name])
            for one in self.fields
            if not same_json(before[one.name], after[one.name])
        }

    def check(self, patch: object, author: str) -> None:
        """Rejects a patch that does not fit this state, and names its author.

        Raises: InvariantBroken `patch_refused`.
        """
        if not isinstance(patch, dict):
            raise InvariantBroken("patch_refused", f"{author} returned {type(patch).__name__}, not a partial update.")
        for name, value in patch.items():
            if name not in self._by_name:
                raise InvariantBroken("patch_refused", f"{author} wrote `{name}`, which the state does not have.")
            if where := not_json(value, name):
                raise InvariantBroken("patch_refused", f"{author} wrote what is not JSON: {where}.")

    def is_shared(self, name: str) -> bool:
        """Returns whether parallel branches can both write the field `name`."""
        return self._by_name[name].reducer != LAST_VALUE


def not_json(value: object, path: str) -> str:
    """Returns the position at which `value` is not JSON, as a path and a type; empty if all of it is JSON. A tuple is
    not JSON, because a pause would turn it into a list."""
    if isinstance(value, str | bool | int) or value is None:
        return ""
    if isinstance(value, float):
        return "" if value - value == 0 else f"{path} is {value}"
    if isinstance(value, list):
        for index, item in enumerate(value):
            if type(item) not in _SCALARS and (found := not_json(item, f"{path}[{index}]")):
                return found
        return ""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                return f"{path} has the key {key!r}"
            if type(item) not in _SCALARS and (found := not_json(item, f"{path}.{key}")):
                return found
        return ""
    return f"{path} is a {type(value).__name__}"


def _copy(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value
