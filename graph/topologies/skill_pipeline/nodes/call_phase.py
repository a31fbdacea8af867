"""initial_llm_call and synthesis_llm_call: one call, two phases (S0-44)."""

from dataclasses import dataclass

from contracts.messages import Patch
from contracts.turns import OnSpent
from graph.nodes.call_model import CallModel, spent_by
from graph.nodes.fields import SYNTHESIS
from graph.nodes.pause import at_limit
from graph.nodes.reading import error_of, plan_of
from graph.ports import Ports
from graph.spec import State


@dataclass(frozen=True, slots=True)
class CallPhase:
    """Call the model in this phase; synthesis calls only where a skill was injected.

    A limit that is spent ends the turn, or pauses it for a reviewer who may raise it.
    """

    phase: str
    call: CallModel

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """The patch of the call, with the phase."""
        if self.phase == SYNTHESIS and not state["skill_injection_done"]:
            return {"llm_phase": self.phase, "pending_tool_calls": []}
        over = spent_by(state) if error_of(state) is None else None
        if over is not None and plan_of(state).limits.on_spent is OnSpent.ASK:
            return {"llm_phase": self.phase} | at_limit(state, ports, over)
        return {"llm_phase": self.phase} | await self.call(state, ports)
