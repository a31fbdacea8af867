"""final: how the run ends (S2-43). Its last events are written with the end itself, in one transaction."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from contracts.messages import Patch
from graph.nodes.call_model import ended_by
from graph.nodes.fields import AWAITING_HITL
from graph.nodes.reading import error_of
from graph.ports import Ports
from graph.spec import State


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
