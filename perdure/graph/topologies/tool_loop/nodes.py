"""The five nodes of `tool_loop`, by their ids."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pydantic import JsonValue

from perdure.contracts.activities import TurnContext
from perdure.contracts.messages import Patch
from perdure.core.agents.toolsets import LOAD_TOOLSET, load
from perdure.graph.nodes.await_verdict import AwaitVerdict
from perdure.graph.nodes.call_model import CallModel, end_status
from perdure.graph.nodes.fields import AWAITING_HITL, calls_of, error_of, plan_of, toolsets_of
from perdure.graph.nodes.pause import gate_patch, memory_patch, plan_patch
from perdure.graph.nodes.run_tools import RunTools
from perdure.graph.nodes.skills import carried_patch
from perdure.graph.ports import Ports
from perdure.graph.spec import Node, State


# entry starts or resumes a turn. The engine handles a stop, which ends the next call of any node.
@dataclass(frozen=True, slots=True)
class Enter:
    """A node that resets the fields of a run. A new turn also takes its plan, and a gate that was opened before."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the reset fields. A resumed run keeps its state and loads nothing."""
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
            return patch | {"error": context.problem.model_dump(mode="json"), "status": end_status(context.problem)}
        if context.user_message is not None and context.pending:
            patch |= memory_patch(context, context.user_message) | gate_patch(context, context.user_message)
        return patch | _plan_patch(context)


def _plan_patch(context: TurnContext) -> Patch:
    """Returns what the turn pinned, with the toolsets that its conversation has loaded."""
    if context.plan is None:
        return {}
    return plan_patch(context) | {"loaded_toolsets": {**context.plan.toolsets}}


# memory_prepare adds the user's message, and a flag that the memory is in place.
@dataclass(frozen=True, slots=True)
class PrepareMemory:
    """A node that takes the result of the turn's one load. Its text is fixed for the turn. Each model request contains
    it, but the messages never do, so that it does not accumulate."""

    keeps_skills: bool = False
    """True if the turn starts with the skills that its conversation has loaded."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the fields without another activity; empty if this was done already."""
        if state["memory_context_loaded"] or error_of(state) is not None:
            return {}
        context = await ports.memory.load()
        patch: Patch = {"memory_context_loaded": True}
        if context.problem is None and context.user_message is not None:
            patch |= memory_patch(context, context.user_message)
        return patch | carried_patch({**state, **patch}, plan_of(state)) if self.keeps_skills else patch


# gate loads toolsets, opens requests and runs calls that can run. Each call has its own approval, and all requests of a
# round open together. Calls without a request run in parallel. Each gated call follows its own verdict: an approved one
# runs, a refused one gets its denial. The model continues when every call of the round has its answer.
@dataclass(frozen=True, slots=True)
class PassGate:
    """A node that reads the records after a pause, then runs the calls that can run."""

    await_verdict: AwaitVerdict = field(default_factory=lambda: AwaitVerdict(ungated_first=True))
    run_tools: RunTools = field(default_factory=lambda: RunTools(ungated_first=True))

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the patch of the round. It never passes an unreadable record; the run then stays paused."""
        patch: Patch = await self.await_verdict(state, ports) if state["pending_mutation"] else _toolsets_patch(state)
        after = {**state, **patch}
        if after["pending_tool_calls"] and after["error"] is None and after["status"] != AWAITING_HITL:
            patch |= await self.run_tools(after, ports)
            after = {**state, **patch}
        return patch | {"awaiting_approval": after["status"] == AWAITING_HITL}


def _toolsets_patch(state: State) -> Patch:
    """Returns the toolsets after a new round. Their results were written with the round, without an activity."""
    before = loaded = toolsets_of(state)
    cards = plan_of(state).cards
    for call in calls_of(state):
        if call.tool == LOAD_TOOLSET and call.args:
            loaded = load(call.args, cards, loaded).loaded
    toolsets: dict[str, JsonValue] = {**loaded}
    return {} if loaded == before else {"loaded_toolsets": toolsets}


# final ends the run. Its last events are written with the end, in one transaction.
@dataclass(frozen=True, slots=True)
class Settle:
    """A node that sets the status. Pauses and errors remain, and a pause is not done; every other run is completed."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the status and the duration of the turn, including its pauses."""
        if state["status"] == AWAITING_HITL:
            return {"awaiting_approval": True}
        error = error_of(state)
        status = "completed" if error is None else end_status(error)
        if state["status"] == "limited":
            status = "limited"
        now = ports.clock.now()
        patch: Patch = {"done": True, "status": status, "ended_at": now.isoformat()}
        started_at = state["started_at"]
        if isinstance(started_at, str):
            patch["duration_ms"] = (now - datetime.fromisoformat(started_at)) // timedelta(milliseconds=1)
        return patch


NODES: dict[str, Node] = {
    "entry": Enter(),
    "memory_prepare": PrepareMemory(keeps_skills=True),
    "model": CallModel(by_toolsets=True, folds=True, continues=True, skill_marks=True, loads_skills=True),
    "gate": PassGate(),
    "final": Settle(),
}
NODES_2: dict[str, Node] = {
    **NODES,
    "memory_prepare": PrepareMemory(),
    "model": CallModel(by_toolsets=True, folds=True, continues=True),
}
"""The nodes of version 2, which loads no skills."""
NODES_1: dict[str, Node] = {**NODES_2, "model": CallModel(by_toolsets=True)}
"""The nodes of version 1, whose state keeps every message and which continues no cut answer."""
