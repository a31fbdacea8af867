"""assembly_gate: the tools of this turn in phases, before both branches begin (S1-21)."""

from dataclasses import dataclass

from pydantic import JsonValue

from contracts.events import STAGE
from contracts.messages import Patch
from graph.ports import Ports
from graph.spec import State
from graph.topologies.context_assembly.nodes.asking import assembly_of
from policy.phases import phases


@dataclass(frozen=True, slots=True)
class OpenGate:
    """Group the tools. A cycle was refused when the app was read (S1-23)."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """The phases, by name."""
        grouped: list[JsonValue] = [
            [*names] for names in phases({tool.name: tool.dependencies for tool in assembly_of(state).tools})
        ]
        ports.events.emit(STAGE, {"stage": "assembly_gate", "phases": grouped})
        return {"completed_stages": ["assembly_gate"], "phases": grouped}
