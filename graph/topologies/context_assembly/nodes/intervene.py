"""safety_intervention: the fixed text of the agent, word for word; no model is asked on this way (S1-13, S1-14)."""

from dataclasses import dataclass

from contracts.events import STAGE
from contracts.messages import MessageRef, Patch, Role
from graph.nodes.reading import error_of, messages_of
from graph.ports import Ports
from graph.spec import State
from graph.topologies.context_assembly.nodes.asking import assembly_of
from policy.text import estimated_tokens


@dataclass(frozen=True, slots=True)
class Intervene:
    """Answer; the turn's end writes the answer down."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Nothing where the turn has failed or was stopped before it could be classified."""
        if error_of(state) is not None:
            return {"completed_stages": ["safety_intervention"]}
        text = assembly_of(state).intervention
        answer = MessageRef(role=Role.ASSISTANT, text=text, tokens=estimated_tokens(text))
        ports.events.emit(STAGE, {"stage": "safety_intervention", "category": state["safety_category"]})
        return {
            "completed_stages": ["safety_intervention"],
            "messages": [message.model_dump(mode="json") for message in [*messages_of(state), answer]],
        }
