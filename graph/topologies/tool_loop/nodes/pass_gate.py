"""gate: toolsets are loaded, approvals asked for, calls run as each may (S2-32 to S2-40).

An approval for each call: all of a round are asked for at once, what needs nobody runs beside them, and each gated call
goes by its own verdict, an approved one to its effect and a refused one to its denial. The model goes on when all of
the round has its answer.
"""

from dataclasses import dataclass, field

from pydantic import JsonValue

from contracts.messages import Patch
from graph.nodes.await_verdict import AwaitVerdict
from graph.nodes.fields import AWAITING_HITL
from graph.nodes.reading import calls_of, plan_of, toolsets_of
from graph.nodes.run_tools import RunTools
from graph.ports import Ports
from graph.spec import State
from policy.toolsets import LOAD_TOOLSET, load


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
