"""output_format: the status of the run (S0-73)."""

from dataclasses import dataclass

from contracts.messages import Patch
from graph.nodes.call_model import ended_by
from graph.nodes.fields import AWAITING_HITL
from graph.nodes.reading import error_of, number_of
from graph.ports import Ports
from graph.spec import State


@dataclass(frozen=True, slots=True)
class FormatOutput:
    """A pause stays a pause, an error an error; everything else is completed."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """An end counts as an iteration, as in the source. A pause does not: each look would use up the limit."""
        iteration: Patch = {"iteration": number_of(state, "iteration") + 1}
        error = error_of(state)
        if error is not None:
            return iteration if state["status"] == "limited" else iteration | {"status": ended_by(error)}
        return {} if state["status"] == AWAITING_HITL else iteration | {"status": "completed"}
