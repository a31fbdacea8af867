"""The state of a graph: which fields it has, what they start as, how patches join them.

Every topology has the kernel's five fields; all others are its own. All values are JSON: a state crosses pauses,
deploys and processes as text. Nodes get the state to read; they change it only by the patch that they return.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from pydantic import JsonValue

from perdure.contracts.errors import InvariantBroken
from perdure.contracts.values import canonical_json

# --- How a patch meets the state: one declared reducer per field, and markers that can take things away.
# A reducer that adds cannot express clearing: a removed key or an emptied string comes back with the next merge
# (S4-15). So two markers, plain JSON, may stand in a patch of such a field wherever a value may: `DELETE` removes a
# key, or resets the whole field to its default; `replace(value)` sets exactly `value`. What is inside `replace` is
# never read for markers: wrap data from outside in it. A field that keeps the last value has no markers.
#
# Determinism: reducers are pure, never change their arguments, and compare by canonical JSON, so 1 and true differ.

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


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a state."""

    name: str
    default: JsonValue = None
    """Copied for every run."""
    reducer: Reducer = LAST_VALUE


KERNEL_FIELDS = (
    Field("status", "running"),
    Field("error", None),
    Field("current_node", None),
    Field("pending_requests", []),
    Field("messages", []),
)
"""What the engine reads of any state: a status of the topology's vocabulary, a problem as an object or None, the
requests that a pause waits for, this turn's messages. `current_node` it writes itself, as each node starts (S0-11). A
topology may give `status` another default and `messages` another reducer."""


@dataclass(frozen=True, slots=True)
class StateSchema:
    """The fields of a topology's state, the kernel's included."""

    own: tuple[Field, ...] = ()
    """The topology's fields; one with a kernel field's name takes its place."""
    fields: tuple[Field, ...] = field(init=False)
    """All fields, the kernel's first."""
    _by_name: dict[str, Field] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name = {one.name: one for one in (*KERNEL_FIELDS, *self.own)}
        object.__setattr__(self, "_by_name", by_name)
        object.__setattr__(self, "fields", tuple(by_name.values()))

    def initial(self, **overrides: JsonValue) -> dict[str, JsonValue]:
        """A fresh state, shared with no other run.

        Raises: InvariantBroken `patch_refused` for an unknown field or a value that is not JSON.
        """
        self.check(overrides, "the initial state")
        return {one.name: _copy(overrides.get(one.name, one.default)) for one in self.fields}

    def resumed(self, carried: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """A carried state made whole: a pause may outlive deploys, so fields added since take their default and
        fields dropped since are left behind."""
        return {one.name: _copy(carried.get(one.name, one.default)) for one in self.fields}

    def apply(self, state: Mapping[str, JsonValue], patch: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """The state after a checked patch; neither argument is changed."""
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
        """A patch that turns `before` into `after`, each field by its own reducer."""
        return {
            one.name: one.reducer.delta(before[one.name], after[one.name])
            for one in self.fields
            if not same(before[one.name], after[one.name])
        }

    def check(self, patch: object, author: str) -> None:
        """Refuse what is no patch of this state, naming its author.

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
        """Whether parallel branches may both write the field `name`."""
        return self._by_name[name].reducer != LAST_VALUE


_SCALARS = frozenset({str, int, bool, type(None)})


def not_json(value: object, path: str) -> str:
    """Where `value` is not JSON, as a path and a type; empty where all of it is. A tuple is not: it would come back
    from a pause as a list."""
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
