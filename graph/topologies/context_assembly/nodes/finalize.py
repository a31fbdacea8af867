"""finalize: how the run ends, on whichever way it came here."""

from dataclasses import dataclass

from contracts.messages import Patch
from graph.nodes.call_model import ended_by
from graph.nodes.fields import AWAITING_HITL
from graph.nodes.reading import error_of
from graph.ports import Ports
from graph.spec import State


@dataclass(frozen=True, slots=True)
class Finalize:
    """A pause stays a pause; an error, a limit and a stop stay what they are; everything else is completed."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """The status."""
        if state["status"] == AWAITING_HITL:
            return {}
        error = error_of(state)
        status = "completed" if error is None else ended_by(error)
        return {"completed_stages": ["finalize"], "status": "limited" if state["status"] == "limited" else status}
