"""skill_inject_node: one system message for each selected skill (S0-62, S0-63); its text stays with the agent."""

from dataclasses import dataclass

from pydantic import JsonValue

from contracts.events import SKILL_INJECTED
from contracts.messages import MessageRef, Patch, Role
from graph.ports import Ports
from graph.spec import State


@dataclass(frozen=True, slots=True)
class InjectSkills:
    """Refer to the skill from the messages; the model call puts its text there."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Each skill is injected once a turn."""
        selected, injected = state["selected_skill_ids"], state["injected_skill_ids"]
        before, active = state["messages"], state["active_skills"]
        if not isinstance(selected, list) or not isinstance(injected, list) or not isinstance(before, list):
            return {}
        messages: list[JsonValue] = list(before)
        for skill_id in selected:
            ref = MessageRef(role=Role.SYSTEM, skill_id=str(skill_id))
            messages.append(ref.model_dump(mode="json"))
            ports.events.emit(SKILL_INJECTED, {"skill_id": skill_id, "tier": 2})
        return {
            "messages": messages,
            "injected_skill_ids": [*injected, *selected],
            "active_skills": {**(active if isinstance(active, dict) else {}), **{str(s): 2 for s in selected}},
            "selected_skill_ids": [],
            "skill_injection_done": bool(selected),
        }
