"""Nodes that follow a script, and the ports that carry it: they prove the kernel without any domain.

One compiled topology serves every route, since the script travels with the ports of the run.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import JsonValue

from perdure.contracts.messages import Patch
from perdure.contracts.values import canonical_json
from perdure.graph.ports import Ports
from perdure.graph.spec import Node, State

Rows = Mapping[str, Sequence[Patch | Exception]]


@dataclass(slots=True)
class RecordedEvents:
    events: list[tuple[str, dict[str, JsonValue]]] = field(default_factory=list)

    def emit(self, kind: str, data: dict[str, JsonValue] | None = None, call_id: str | None = None) -> None:
        self.events.append((kind, data or {}))

    def trace(self) -> list[str]:
        return [str(data["node"]) for kind, data in self.events if kind == "node_start"]


@dataclass(slots=True)
class Script:
    """The patch of each node at its first, second, ... visit; nodes that it does not name return nothing."""

    rows: Rows = field(default_factory=dict)
    visits: dict[str, int] = field(default_factory=dict)

    def next(self, node: str) -> Patch:
        """The patch of this visit; raises if the script has an error."""
        visit = self.visits[node] = self.visits.get(node, 0) + 1
        row = self.rows.get(node, ())
        if visit > len(row):
            return {}
        said = row[visit - 1]
        if isinstance(said, Exception):
            raise said
        return said


@dataclass(frozen=True, slots=True)
class ScriptedPorts(Ports):
    script: Script
    pace: Callable[[str], Awaitable[None]]
    """Awaited inside every node: lets a test decide which of several is slower."""

    @property
    def recorded(self) -> RecordedEvents:
        return cast(RecordedEvents, self.events)


async def at_once(node: str) -> None:
    """The pace of a node that waits for nothing."""


def scripted_ports(rows: Rows | None = None, pace: Callable[[str], Awaitable[None]] = at_once) -> ScriptedPorts:
    none: Any = None
    """A port that no stand-in touches."""

    def apart(branches: int) -> list[Ports]:
        return [made] * branches

    log, script = RecordedEvents(), Script(rows or {})
    made = ScriptedPorts(none, none, none, none, log, none, apart, lambda entry, many_steps: False, script, pace)
    return made


@dataclass(frozen=True, slots=True)
class StandIn:
    id: str

    async def __call__(self, state: State, ports: Ports) -> Patch:
        assert isinstance(ports, ScriptedPorts)
        assert str(state["current_node"]).rpartition("/")[2] == self.id, "the state says where the run is"
        before = canonical_json(dict(state))
        await ports.pace(self.id)
        patch = ports.script.next(self.id)
        assert canonical_json(dict(state)) == before, f"the state changed under {self.id}"
        return patch


def stand_ins(ids: Sequence[str]) -> dict[str, Node]:
    return {node: StandIn(node) for node in ids}
