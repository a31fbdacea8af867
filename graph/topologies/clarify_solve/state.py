"""The state of `clarify_solve`: four buckets (S4-12), joined key by key, beside what every turn has.

Metrics are state and not ambient, so that they cross activities and pauses (S4-13). What is cleared is cleared by a
marker, and what comes from a model or from outside is wrapped, so that nothing in it is taken for one (S4-15).
"""

from typing import Final

from pydantic import JsonValue

from contracts.messages import Patch
from graph.nodes.fields import IDENTITY
from graph.reducers import ADDITIVE, DEEP_MERGE, DELETE, replace
from graph.spec import State
from graph.state import Field, StateSchema

STATE: Final = StateSchema(
    (
        *IDENTITY,
        Field("user", {}),
        Field("plan", {}),
        Field("tokens_used", 0, ADDITIVE),
        Field("cost_microusd", 0, ADDITIVE),
        Field("max_tokens", 100_000),
        Field("max_cost_microusd", 5_000_000),
        Field("max_iterations", 20),
        Field("input", {}),
        Field("processing", {}, DEEP_MERGE),
        Field("output", {}, DEEP_MERGE),
        Field("turn_metrics", {}, DEEP_MERGE),
    )
)
PLANNING_ENTRIES: Final = 3
"""Entries of the planning node that count, the first one too (S4-29)."""
CLARIFICATIONS: Final = 2
"""Questions of a turn, however often it is answered (S4-21)."""
XML_GENERATIONS: Final = 4
"""The first and three more (S4-27)."""


def bucket(state: State, name: str) -> dict[str, JsonValue]:
    """A bucket to read."""
    found = state[name]
    return found if isinstance(found, dict) else {}


def found(state: State, name: str) -> JsonValue:
    """What a node left in `processing` under `name`; None where nothing is."""
    return bucket(state, "processing").get(name)


def text_of(state: State, name: str) -> str:
    """A word that a node left in `processing`; empty where there is none."""
    value = found(state, name)
    return value if isinstance(value, str) else ""


def object_of(state: State, name: str) -> dict[str, JsonValue]:
    """An object that a node left in `processing`."""
    value = found(state, name)
    return value if isinstance(value, dict) else {}


def list_of(state: State, name: str) -> list[JsonValue]:
    """A list that a node left in `processing`."""
    value = found(state, name)
    return value if isinstance(value, list) else []


def number(state: State, name: str) -> int:
    """A counter in `processing`."""
    value = found(state, name)
    return value if isinstance(value, int) else 0


def left(**values: JsonValue) -> Patch:
    """These values, exactly, in `processing`; None takes one away."""
    wrapped: dict[str, JsonValue] = {
        name: DELETE if value is None else replace(value) for name, value in values.items()
    }
    return {"processing": wrapped}


def counted(state: State, name: str, more: int = 1) -> Patch:
    """One counter of `turn_metrics` further."""
    before = bucket(state, "turn_metrics").get(name)
    return {"turn_metrics": {name: replace((before if isinstance(before, int) else 0) + more)}}


def warnings_of(*results: dict[str, JsonValue]) -> list[JsonValue]:
    """What has to be said of a picture: the warnings of all that it came from, in order."""
    told = list[JsonValue]()
    for result in results:
        warnings = result.get("warnings")
        told += warnings if isinstance(warnings, list) else []
    return told
