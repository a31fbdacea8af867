"""The five nodes of `tool_loop`, by their ids."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pydantic import JsonValue

from perdure.contracts.activities import TurnContext
from perdure.contracts.messages import Patch
from perdure.core.agents.toolsets import LOAD_TOOLSET, load
from perdure.graph.nodes.await_verdict import AwaitVerdict
from perdure.graph.nodes.call_model import CallModel, ended_by
from perdure.graph.nodes.fields import AWAITING_HITL, calls_of, error_of, plan_of, toolsets_of
from perdure.graph.nodes.pause import found_gate, planned, remembered
from perdure.graph.nodes.run_tools import RunTools
from perdure.graph.ports import Ports
from perdure.graph.spec import Node, State

# --- entry: a turn begins, or goes on where it waited (S2-04).
# A stop is the engine's: it ends any node's next call.


@dataclass(frozen=True, slots=True)
class Enter:
    """Reset what a run has of its own; a fresh turn also takes its plan, and a gate that was opened before."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """A resumed run keeps its state, and loads nothing (S2-06)."""
        patch: Patch = {
            "awaiting_approval": False,
            "memory_context_loaded": False,
            "ttft_emitted": False,
            "done": False,
            "status": "running",
        }
        if state["pending_mutation"]:
            return patch
        context = await ports.memory.load()
        patch |= {"run_id": state["execution_id"], "started_at": ports.clock.now().isoformat()}
        if context.problem is not None:
            return patch | {"error": context.problem.model_dump(mode="json"), "status": ended_by(context.problem)}
        if context.user_message is not None and context.pending:
            patch |= remembered(context, context.user_message) | found_gate(context, context.user_message)
        return patch | _planned(context)


def _planned(context: TurnContext) -> Patch:
    """What the turn pinned, with what its conversation has loaded."""
    if context.plan is None:
        return {}
    return planned(context) | {"loaded_toolsets": {**context.plan.toolsets}}


# --- memory_prepare: the user's message, and that what is remembered is in place (S2-06, S2-17, S2-18).


@dataclass(frozen=True, slots=True)
class PrepareMemory:
    """Take what the turn's one load has found. Its text is fixed for the turn and put before the model in each request,
    never into the messages, so nothing of it piles up."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """No hop of its own; nothing where it was done already."""
        if state["memory_context_loaded"] or error_of(state) is not None:
            return {}
        context = await ports.memory.load()
        patch: Patch = {"memory_context_loaded": True}
        if context.problem is None and context.user_message is not None:
            patch |= remembered(context, context.user_message)
        return patch


# --- gate: toolsets are loaded, approvals asked for, calls run as each may (S2-32 to S2-40).
# An approval for each call: all of a round are asked for at once, what needs nobody runs beside them, and each gated
# call goes by its own verdict, an approved one to its effect and a refused one to its denial. The model goes on when
# all of the round has its answer.


@dataclass(frozen=True, slots=True)
class PassGate:
    """Look at the records where the run waited, then run what may run."""

    look: AwaitVerdict = field(default_factory=lambda: AwaitVerdict(ungated_first=True))
    run: RunTools = field(default_factory=lambda: RunTools(ungated_first=True))

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """What it cannot read, it does not pass: the run waits on (S0-37)."""
        patch: Patch = await self.look(state, ports) if state["pending_mutation"] else _loaded(state)
        after = {**state, **patch}
        if after["pending_tool_calls"] and after["error"] is None and after["status"] != AWAITING_HITL:
            patch |= await self.run(after, ports)
            after = {**state, **patch}
        return patch | {"awaiting_approval": after["status"] == AWAITING_HITL}


def _loaded(state: State) -> Patch:
    """What a fresh round loads. Its results were written with the round itself: they cost no activity."""
    before = loaded = toolsets_of(state)
    cards = plan_of(state).cards
    for call in calls_of(state):
        if call.tool == LOAD_TOOLSET and call.args:
            loaded = load(call.args, cards, loaded).loaded
    grown: dict[str, JsonValue] = {**loaded}
    return {} if loaded == before else {"loaded_toolsets": grown}


# --- final: how the run ends (S2-43).
# Its last events are written with the end itself, in one transaction.


@dataclass(frozen=True, slots=True)
class Settle:
    """A pause stays a pause and is not done; an error stays an error; everything else is completed."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """The status, and how long the turn took, its pauses included."""
        if state["status"] == AWAITING_HITL:
            return {"awaiting_approval": True}
        error = error_of(state)
        status = "completed" if error is None else ended_by(error)
        if state["status"] == "limited":
            status = "limited"
        now = ports.clock.now()
        patch: Patch = {"done": True, "status": status, "ended_at": now.isoformat()}
        began = state["started_at"]
        if isinstance(began, str):
            patch["duration_ms"] = (now - datetime.fromisoformat(began)) // timedelta(milliseconds=1)
        return patch


NODES: dict[str, Node] = {
    "entry": Enter(),
    "memory_prepare": PrepareMemory(),
    "model": CallModel(by_toolsets=True),
    "gate": PassGate(),
    "final": Settle(),
}
