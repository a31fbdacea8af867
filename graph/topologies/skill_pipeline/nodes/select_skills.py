"""skill_select_node: the skills that the model named and that are not yet injected (S0-61)."""

from dataclasses import dataclass

from pydantic import JsonValue

from contracts.events import SKILL_SELECTED
from contracts.messages import Patch
from graph.nodes.reading import plan_of
from graph.ports import Ports
from graph.spec import State

SKILL_PATTERN = r"SKILL_SELECT:([a-z][a-z0-9_]{0,63})"


@dataclass(frozen=True, slots=True)
class SelectSkills:
    """Keep of the marks in the latest answer those that name a skill of this agent."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Marks were found in the whole answer where it was settled; here they are matched."""
        marks, injected = state["extracted"], state["injected_skill_ids"]
        known = plan_of(state).skill_ids
        if not isinstance(marks, list) or not isinstance(injected, list):
            return {"selected_skill_ids": []}
        selected: list[JsonValue] = [mark for mark in marks if mark in known and mark not in injected]
        if selected:
            ports.events.emit(SKILL_SELECTED, {"skill_ids": selected})
        return {"selected_skill_ids": selected}
