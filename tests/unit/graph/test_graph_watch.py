"""Alarms of a run: a node that does what it did not declare is told of, and everything goes on as it would have."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
from pydantic import JsonValue

from perdure.contracts.activities import TurnContext
from perdure.contracts.calls import ModelCallRequest
from perdure.contracts.events import MAX_ALARMS
from perdure.contracts.memory import FactsAnswer, FactScope, FactsRequest, FactStatus
from perdure.contracts.messages import Patch
from perdure.graph.compile import CompiledTopology, compile_topology
from perdure.graph.ports import Ports
from perdure.graph.spec import END, FRESH, Goto, Node, NodeSpec, RunLimits, State, Switch, Topology
from perdure.graph.state import Field, StateSchema
from tests.doubles.fake_turn import FakeTurn, Says
from tests.doubles.ports import FakeRun

ROUNDS = 1_000


async def again(state: State) -> Literal["more", "enough"]:
    rounds = state["rounds"]
    return "enough" if isinstance(rounds, int) and rounds >= ROUNDS else "more"


async def rogue(state: State, ports: Ports) -> Patch:
    """Writes what is not its own, and uses what it has not declared, at every visit."""
    rounds = state["rounds"]
    assert isinstance(rounds, int)
    if rounds == 0:
        await ports.model.complete(ModelCallRequest(messages=(), tools=()))
        await ports.memory.facts(FactsRequest(scope=FactScope.USER, authorized=True))
        await ports.memory.facts(FactsRequest(scope=FactScope.USER, authorized=True, write=True))
    patch: Patch = {"rounds": rounds + 1, "others": rounds, "status": "completed"}
    return patch | {f"field_{rounds % 60}": rounds}


def watched(node: NodeSpec, schema: StateSchema, edge: Goto | Switch, **more: Any) -> CompiledTopology:
    made: dict[str, Any] = {"nodes": (node,), "edges": (edge,), **more}
    return compile_topology(Topology(name="watched", version=1, state=schema, entries={FRESH: node.id}, **made))


def rogue_topology(*, declares: bool) -> CompiledTopology:
    """One node that goes round a thousand times, and one to which the field `others` belongs."""
    fields = (Field("rounds", 0), Field("others", 0), *(Field(f"field_{index}") for index in range(60)))
    one = NodeSpec("rogue", rogue, limit="max_steps")
    if declares:
        one = replace(one, writes=("rounds", "status"), reaches=())
    owner = NodeSpec("owner", rogue, writes=("others",) if declares else None)
    edges = (Switch("rogue", again, {"more": "rogue", "enough": "owner"}), Goto("owner", END))
    limits = RunLimits(steps=ROUNDS + 2)
    return watched(one, StateSchema(fields), edges[0], nodes=(one, owner), edges=edges, limits=limits)


async def run(compiled: CompiledTopology) -> tuple[dict[str, JsonValue], FakeRun]:
    run = FakeRun(FakeTurn({}, {}, [Says("fine")]))
    state = await compiled.run(compiled.topology.state.initial(), FRESH, run.as_ports())
    return state, run


@pytest.mark.timeout(300)
async def test_a_thousand_alarms_change_only_the_log_of_a_run() -> None:
    state, seen = await run(rogue_topology(declares=True))
    plain_state, plain = await run(rogue_topology(declares=False))
    assert state == plain_state
    assert state["rounds"] == ROUNDS + 1
    assert seen.trace() == plain.trace()
    told = [data for kind, data in seen.events if kind == "invariant.alarm"]
    assert [event for event in seen.events if event[0] != "invariant.alarm"] == plain.events
    assert len(told) == MAX_ALARMS, "each once, and a bounded number of them"
    unauthorized = {f"{what}_unauthorized" for what in ("model_access", "memory_read", "memory_write")}
    mutated = {"state_mutation_outside_allowed_node", "forbidden_state_field_mutated"}
    assert {str(each["type"]) for each in told} == unauthorized | mutated
    assert {str(each["severity"]) for each in told} == {"error"}


async def led(state: State, ports: Ports) -> Patch:
    """Reads what only advises, and writes a fact where none may be changed."""
    await ports.memory.facts(FactsRequest(scope=FactScope.USER, authorized=True, write=True))
    assert {**state}["advice"] == state["advice"]
    return {"status": "completed", "seen": state.get("advice")}


async def copies(state: State, ports: Ports) -> Patch:
    """Copies the state, and reads none of its advice."""
    return {"status": "completed", "seen": {**state}["advice"]}


@dataclass(frozen=True, slots=True)
class Refusing:
    """A memory whose database refuses to change a fact."""

    async def load(self) -> TurnContext:
        return TurnContext()

    async def facts(self, ask: FactsRequest) -> FactsAnswer:
        return FactsAnswer(status=FactStatus.FAILED, refused_change=True)


async def misled(state: State) -> Literal["there", "not"]:
    return "there" if state["advice"] else "not"


@pytest.mark.parametrize(("node", "advised", "edge", "told"), [
    (led, True, Goto("only", END), ["memory_not_append_only"]),
    (led, False, Goto("only", END), ["memory_not_append_only", "memory_advisory_overridden"]),
    (copies, False, Goto("only", END), []),
    (copies, True, Switch("only", misled, {"there": END, "not": END}), ["memory_advisory_overridden"]),
], ids=["a node that may", "a node that may not", "a node that copies", "a router"])  # fmt: skip
async def test_missed_memory_access_is_logged(node: Node, advised: bool, edge: Goto | Switch, told: list[str]) -> None:
    only = NodeSpec("only", node, writes=("status", "seen"), reaches=("memory",), advised=advised)
    compiled = watched(only, StateSchema((Field("advice", "left"), Field("seen"))), edge, advice=("advice",))
    run = FakeRun(FakeTurn({}, {}, []))
    ports = replace(run.as_ports(), memory=Refusing())
    state = await compiled.run(compiled.topology.state.initial(), FRESH, ports)
    assert (state["status"], state["seen"]) == ("completed", "left"), "it has read what is there"
    assert [data["type"] for kind, data in run.events if kind == "invariant.alarm"] == told


async def test_an_undeclared_memory_access_is_always_a_warning() -> None:
    async def careless(state: State, ports: Ports) -> Patch:
        answer = await ports.memory.facts(FactsRequest(scope=FactScope.USER, authorized=False))
        return {"status": "completed", "seen": answer.status.value}

    only = NodeSpec("only", careless, writes=("status", "seen"), reaches=("memory",))
    compiled = watched(only, StateSchema((Field("seen"),)), Goto("only", END))
    state, seen = await run(compiled)
    assert state["seen"] == "unauthorized"
    (told,) = (data for kind, data in seen.events if kind == "invariant.alarm")
    assert (told["type"], told["severity"], told["node"]) == ("memory_read_unauthorized", "warn", "only")
