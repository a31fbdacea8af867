"""The state of a graph: which fields it has, what they start as, how patches join them.

Every topology has the kernel's five fields; all others are its own. All values are JSON: a state crosses pauses,
deploys and processes as text. Nodes get the state to read; they change it only by the patch that they return.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from contracts.errors import InvariantBroken
from graph.reducers import LAST_VALUE, Reducer, is_delete, is_replace, same


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
