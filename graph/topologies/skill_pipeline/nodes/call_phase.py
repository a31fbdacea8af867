"""initial_llm_call and synthesis_llm_call: one call, two phases (S0-44)."""

from dataclasses import dataclass

from contracts.messages import Patch
from graph.nodes.call_model import CallModel
from graph.nodes.fields import SYNTHESIS
from graph.ports import Ports
from graph.spec import State


@dataclass(frozen=True, slots=True)
class CallPhase:
    """Call the model in this phase; synthesis calls only where a skill was injected."""

    phase: str
    call: CallModel

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """The patch of the call, with the phase."""
        if self.phase == SYNTHESIS and not state["skill_injection_done"]:
            return {"llm_phase": self.phase, "pending_tool_calls": []}
        called = await self.call({**state, "llm_phase": self.phase}, ports)
        return {"llm_phase": self.phase} | called
