"""A turn on the fake ports, to its pause, resumed warm from its state or cold from the store.

The topology is `skill_pipeline` unless said otherwise; its nodes are held to the activities that they declare.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
from pydantic import JsonValue

from perdure.contracts import activities
from perdure.contracts.agents import PlanCard
from perdure.contracts.approvals import PauseKind, VerdictState
from perdure.contracts.calls import EffectClass
from perdure.contracts.messages import MessageRef, Patch
from perdure.graph.compile import CompiledTopology, compile_topology
from perdure.graph.nodes.fields import messages_of
from perdure.graph.ports import Ports
from perdure.graph.registry import spec
from perdure.graph.spec import FRESH, Node, NodeSpec, Outcome, State, Sub, Topology
from perdure.graph.step import RunRenewed
from perdure.workflows.turn_segment import Steps
from tests.doubles.fake_turn import TURN_ID, Ambiguous, Args, FakeTurn, Says
from tests.doubles.ports import FakeRun

BY_METHOD: Mapping[tuple[str, str], activities.ActivityRef[Any, Any]] = {
    ("model", "complete"): activities.MODEL_COMPLETE,
    ("tools", "run"): activities.TOOLS_RUN,
    ("tools", "make"): activities.TOOLS_RUN,
    ("tools", "check"): activities.TOOLS_CHECK,
    ("tools", "assemble"): activities.TOOLS_ASSEMBLE,
    ("memory", "load"): activities.MEMORY_LOAD,
    ("memory", "facts"): activities.MEMORY_FACTS,
    ("people", "open_requests"): activities.APPROVALS_OPEN,
    ("people", "open_question"): activities.APPROVALS_OPEN,
    ("people", "verdicts"): activities.APPROVALS_READ,
}


@dataclass(frozen=True, slots=True)
class Port:
    name: str
    port: Any
    topology: str
    node: str
    declared: frozenset[str]

    def __getattr__(self, method: str) -> Any:
        ref = BY_METHOD[self.name, method]
        assert ref.name in self.declared, f"{self.topology}/{self.node} calls {ref.name} and does not declare it"
        return getattr(self.port, method)


@dataclass(frozen=True, slots=True)
class Held:
    run: Node
    topology: str
    node: str
    declared: frozenset[str]

    async def __call__(self, state: State, ports: Ports) -> Patch:
        seen: dict[str, Any] = {
            name: Port(name, getattr(ports, name), self.topology, self.node, self.declared)
            for name in ("model", "tools", "memory", "people")
        }
        return await self.run(state, replace(ports, **seen))


@cache
def held(name: str) -> CompiledTopology:
    return compile_topology(_held(spec(name)))


def _held(topology: Topology) -> Topology:
    return replace(topology, nodes=tuple(_node(topology, node) for node in topology.nodes))


def _node(topology: Topology, node: NodeSpec) -> NodeSpec:
    if isinstance(node.run, Sub):
        return replace(node, run=Sub(_held(node.run.topology)))
    declared = frozenset(ref.name for ref in node.calls)
    return replace(node, run=Held(node.run, topology.name, node.id, declared))


V = VerdictState
Call = tuple[str, Mapping[str, JsonValue]]
LOOK: Call = ("look", {"what": "x"})
PAY: Call = ("pay", {"amount": 5})
POST: Call = ("post", {})
BREAKS: Call = ("post", {"breaks": True})
FAILED, CONTEXT = "consecutive_failed_resolves", "recent_entity_context"
CARDS = {
    card.name: card
    for card in (
        PlanCard(name="look", effect=EffectClass.READ, needs_approval=False),
        PlanCard(name="resolve", effect=EffectClass.LOCAL, needs_approval=False, wants_state=(CONTEXT,)),
        PlanCard(name="find", effect=EffectClass.LOCAL, needs_approval=False, wants_state=(FAILED,)),
        PlanCard(name="pay", effect=EffectClass.KEYED, needs_approval=True),
        PlanCard(name="post", effect=EffectClass.OPAQUE, needs_approval=True),
        PlanCard(name="shout", effect=EffectClass.OPAQUE, needs_approval=False),
    )
}


def _look(args: Args) -> JsonValue:
    return {"seen": args.get("what")}


def _resolve(args: Args) -> tuple[JsonValue, Args]:
    return {"status": "resolved"}, {CONTEXT: [args.get("entity", "e1")], FAILED: 0, "nobodys": 1}


def _find(args: Args) -> tuple[JsonValue, Args]:
    state = args.get("state")
    failed = state.get(FAILED) if isinstance(state, dict) else 0
    return {"status": "not_found"}, {FAILED: failed + 1 if isinstance(failed, int) else 1}


def _pay(args: Args) -> JsonValue:
    return {"paid": args.get("amount")}


def _post(args: Args) -> JsonValue:
    if args.get("breaks"):
        raise Ambiguous
    return {"posted": True}


TOOLS = {"look": _look, "resolve": _resolve, "find": _find, "pay": _pay, "post": _post, "shout": _post}


def turn(*script: Says, **given: object) -> FakeTurn:
    return FakeTurn(CARDS, TOOLS, list(script), **given)  # type: ignore[arg-type]


@dataclass(slots=True)
class Played:
    turn: FakeTurn
    state: dict[str, JsonValue] = field(default_factory=dict)
    runs: list[FakeRun] = field(default_factory=list)
    compiled: CompiledTopology = field(default_factory=lambda: held("skill_pipeline"))

    @property
    def run(self) -> FakeRun:
        return self.runs[-1]

    @property
    def messages(self) -> list[MessageRef]:
        return self.turn.unfold(messages_of(self.state))

    def outcome(self) -> Outcome:
        return self.compiled.topology.outcome(self.state)

    @property
    def code(self) -> str:
        error = self.state["error"]
        return str(error["code"]) if isinstance(error, dict) else ""

    @property
    def output(self) -> dict[str, Any]:
        found: Any = self.state["output"]
        return dict(found)

    def fires(self) -> list[str]:
        return [str(data["rule_id"]) for run in self.runs for kind, data in run.events if kind == "hitl.rule_fire"]

    def traces(self) -> list[str]:
        return [" ".join(run.trace()) for run in self.runs]

    def asked_for(self) -> list[str]:
        """The calls for which the latest run opens approvals, and after a bar those that a person must settle."""
        gated, unknown = self.run.asked or ((), ())
        return [*(call.call_id for call in gated), *(f"|{call.call_id}" for call in unknown)]


async def begin(made: FakeTurn, of: str = "skill_pipeline", compiled: CompiledTopology | None = None) -> Played:
    played = Played(made, compiled=compiled or held(of))
    await again_from_the_store(played)
    return played


async def play(*script: Says, **given: object) -> Played:
    return await begin(turn(*script, **given))


async def again_from_the_store(played: Played) -> None:
    """A fresh run over the same turn: nothing is left of its state (a cold resume)."""
    schema = played.compiled.topology.state
    played.state = schema.initial(execution_id=TURN_ID, conversation_id="c", tenant_id="t")
    await _leg(played, FRESH, 0)


async def resume(played: Played) -> None:
    await _leg(played, PauseKind.APPROVAL.value, played.run.step)


async def _leg(played: Played, entry: str, step: int) -> None:
    run = FakeRun(played.turn, Steps(step))
    carried = json.loads(json.dumps(played.state))
    played.runs.append(run)
    try:
        played.state = await played.compiled.run(carried, entry, run.as_ports())
    except RunRenewed as renewed:
        played.state = dict(renewed.state)
        await _leg(played, renewed.entry, run.step)
        return
    if played.outcome() is Outcome.AWAITING:
        run.open()
        if run.continues:
            await _leg(played, PauseKind.APPROVAL.value, run.step)


def roles(played: Played) -> list[str]:
    """The roles of the turn's messages, with the calls that they make or answer and the skill that they bring."""
    return [
        f"{message.role.value}{','.join(call.call_id for call in message.calls)}{message.call_id}{message.skill_id}"
        for message in played.messages
    ]


def ran(made: FakeTurn) -> list[str]:
    return [call_id for call_id, _ in made.ran]


Way = Callable[[Played], Awaitable[None]]


async def decided(
    played: Played, call_id: str, state: V, comment: str = "", args: Args | None = None, *, way: Way = resume
) -> Outcome:
    """A person decides on a call, and the turn continues; returns its outcome."""
    played.turn.decide(call_id, state, comment, args)
    await way(played)
    return played.outcome()


async def settled(played: Played, call_id: str, *, happened: bool, way: Way = resume) -> Outcome:
    played.turn.settle(call_id, happened)
    await way(played)
    return played.outcome()


each_way = pytest.mark.parametrize("way", [resume, again_from_the_store], ids=["warm", "cold"])
