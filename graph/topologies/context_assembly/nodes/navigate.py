"""navigator: the answer. The model and its tools take turns here, gates and approvals as everywhere (S1-38).

One node and not a cycle of two, since the source's edges have none: it loops inside, and a pause leaves it for
`finalize` and comes back to it by its own entry.
"""

from dataclasses import dataclass, field

from contracts.messages import Patch
from graph.nodes.await_verdict import AwaitVerdict
from graph.nodes.call_model import CallModel
from graph.nodes.fields import AWAITING_HITL
from graph.nodes.run_tools import RunTools
from graph.ports import Ports
from graph.spec import State


@dataclass(frozen=True, slots=True)
class Navigate:
    """Ask the model until it has no more calls, or somebody must decide, or a limit is met."""

    ask: CallModel
    look: AwaitVerdict = field(default_factory=lambda: AwaitVerdict(ungated_first=True))
    run: RunTools = field(default_factory=lambda: RunTools(ungated_first=True))

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Where the run waited, the records are looked at first; what cannot be read is not passed."""
        patch: Patch = await self.look(state, ports) if state["pending_mutation"] else {}
        after = {**state, **patch}
        while _goes_on(after):
            answers = not after["pending_tool_calls"]
            patch |= await (self.ask(after, ports) if answers else self.run(after, ports))
            after = {**state, **patch}
            if answers and not after["pending_tool_calls"]:
                break
        return patch if after["status"] == AWAITING_HITL else patch | {"completed_stages": ["navigator"]}


def _goes_on(state: State) -> bool:
    return state["error"] is None and state["status"] != AWAITING_HITL
