"""One row of a route table: what the nodes say, the exact nodes that must run, how it must end."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from perdure.graph.compile import CompiledTopology
from perdure.graph.spec import FRESH, Outcome
from tests.topologies.stand_ins import Rows, ScriptedPorts, scripted_ports


@dataclass(frozen=True, slots=True)
class Leg:
    """From an entry to an end or a pause."""

    trace: str
    """Node ids in the order in which they start, separated by blanks."""
    script: Rows = field(default_factory=dict)
    status: str = "completed"
    entry: str = FRESH


@dataclass(frozen=True, slots=True)
class Row:
    """A turn: one leg, and one more for every pause in it."""

    name: str
    legs: tuple[Leg, ...]
    initial: Mapping[str, JsonValue] = field(default_factory=dict)
    error: str = ""
    """The code of the error that the last leg ends with."""


def row(name: str, *legs: Leg, initial: Mapping[str, JsonValue] | None = None, error: str = "") -> Row:
    return Row(name, legs, initial or {}, error)


async def run_leg(
    compiled: CompiledTopology, state: Mapping[str, JsonValue], leg: Leg
) -> tuple[dict[str, JsonValue], ScriptedPorts]:
    ports = scripted_ports(leg.script)
    return await compiled.run(state, leg.entry, ports), ports


async def run_row(compiled: CompiledTopology, row: Row) -> tuple[dict[str, JsonValue], list[ScriptedPorts]]:
    """The final state of a row, and the ports of every leg. Between legs the state goes through JSON, as it does
    when a turn is paused."""
    topology = compiled.topology
    state = topology.state.initial(**row.initial)
    ports = []
    for leg in row.legs:
        before = json.dumps(state)
        assert leg is row.legs[0] or (topology.outcome(state) is Outcome.AWAITING and state["pending_requests"])
        started = json.loads(before)
        state, used = await run_leg(compiled, started, leg)
        assert json.dumps(started) == before, "a run leaves its start as it was"
        ports.append(used)
    return state, ports
