"""model: one call with the tools that are loaded now (S2-19)."""

from dataclasses import dataclass

from contracts.messages import Patch
from contracts.turns import OnSpent
from graph.nodes.call_model import CallModel, spent_by
from graph.nodes.pause import at_limit
from graph.nodes.reading import error_of, plan_of
from graph.ports import Ports
from graph.spec import State


@dataclass(frozen=True, slots=True)
class AskModel:
    """Call the model. A limit that is spent ends the turn, or pauses it for a reviewer who may raise it."""

    call: CallModel

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """The patch of the call."""
        over = spent_by(state) if error_of(state) is None else None
        if over is not None and plan_of(state).limits.on_spent is OnSpent.ASK:
            return at_limit(state, ports, over)
        return await self.call(state, ports)
