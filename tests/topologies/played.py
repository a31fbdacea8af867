"""A turn on the fake ports, of `skill_pipeline` unless said otherwise: to its pause, resumed warm from its state or
cold from the store."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import JsonValue

from perdure.contracts.agents import PlanCard
from perdure.contracts.approvals import PauseKind, VerdictState
from perdure.contracts.calls import EffectClass
from perdure.contracts.messages import MessageRef
from perdure.graph.compile import CompiledTopology
from perdure.graph.nodes.fields import messages_of
from perdure.graph.spec import FRESH, Outcome
from perdure.graph.step import RunRenewed
from perdure.workflows.turn_segment import Steps
from tests.doubles.fake_turn import TURN_ID, Ambiguous, Args, FakeTurn, Says
from tests.doubles.ports import FakeRun
from tests.topologies.held import held

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
    return {"status": "resolved"}, {CONTEXT: ["e1"], FAILED: 0, "nobodys": 1}


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
