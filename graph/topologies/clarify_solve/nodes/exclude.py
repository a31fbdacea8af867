"""exclusion_processing: what must not be shown, as facts for the solver; none where the model cannot say (S4-25)."""

from dataclasses import dataclass

from contracts.messages import Patch
from graph.nodes.ask_object import ask_object
from graph.ports import Ports
from graph.spec import State
from graph.topologies.clarify_solve.nodes.prompts import asked
from graph.topologies.clarify_solve.shapes import EXCLUDE
from graph.topologies.clarify_solve.state import counted, left


@dataclass(frozen=True, slots=True)
class Exclude:
    """Beside the branch that specifies."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Selector, value and scope of each; the whole where none is named."""
        got = await ask_object(state, ports, EXCLUDE, asked(state))
        found = (got.value or {}).get("exclusions", [])
        return {**got.cost, **counted(state, "exclude", got.tries), **left(exclusions=found)}
