"""skill_inject_node: one system message for each selected skill and each that comes with it (S0-62, S0-63).

The texts stay with the agent: the model call puts them in, and marks them in the injection ledger as it is claimed. The
ledger is checked for this turn, by `injected_skill_ids`: what another turn injected was that turn's, its text is gone
from what the model reads, so the skill is injected again and the event says so.
"""

from dataclasses import dataclass

from pydantic import JsonValue

from contracts.agents import TurnPlan
from contracts.events import SKILL_INJECTED
from contracts.messages import MessageRef, Patch, Role
from graph.nodes.reading import plan_of
from graph.ports import Ports
from graph.spec import State
from policy.loading import brought_by
from policy.text import preview

MOST_ENTITIES = 3
"""A skill is told of so many entities at most, those that the app names first."""


@dataclass(frozen=True, slots=True)
class InjectSkills:
    """Refer to the skills from the messages, dependencies first."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Each skill is injected once a turn."""
        selected, injected = state["selected_skill_ids"], state["injected_skill_ids"]
        before, active = state["messages"], state["active_skills"]
        if not isinstance(selected, list) or not isinstance(injected, list) or not isinstance(before, list):
            return {}
        plan, memory = plan_of(state), state["memory_context"]
        earlier = memory.get("injected") if isinstance(memory, dict) else None
        at_hand = _entities(state, plan)
        tiers = {skill.id: 3 for skill in plan.skills if skill.artifacts}
        coming = [each for each in brought_by(plan, map(str, selected)) if each not in injected]
        messages: list[JsonValue] = list(before)
        for skill_id in coming:
            entities = at_hand if skill_id in selected else ()
            ref = MessageRef(role=Role.SYSTEM, skill_id=skill_id, entities=entities)
            messages.append(ref.model_dump(mode="json"))
            told: dict[str, JsonValue] = {"skill_id": skill_id, "tier": tiers.get(skill_id, 2)}
            again: dict[str, JsonValue] = {"again": True} if isinstance(earlier, list) and skill_id in earlier else {}
            ports.events.emit(SKILL_INJECTED, told | again)
        patch: Patch = {
            "messages": messages,
            "injected_skill_ids": [*injected, *coming],
            "active_skills": {
                **(active if isinstance(active, dict) else {}),
                **{each: tiers.get(each, 2) for each in coming},
            },
            "selected_skill_ids": [],
            "skill_injection_done": bool(coming),
        }
        if at_hand:
            patch["injected_entity_ids"] = [*at_hand]
        return patch


def _entities(state: State, plan: TurnPlan) -> tuple[str, ...]:
    """The entities at hand, `attribute=value` each: those that working memory names in the agent's own fields, then the
    one that was looked at last."""
    working, recent = state["working"], state["recent_entity_context"]
    fields = working if isinstance(working, dict) else {}
    named = [
        f"{attribute}={preview(str(fields[field]))}"
        for field, attribute in plan.entity_fields.items()
        if fields.get(field)
    ]
    newest = [f"id={recent[-1]}"] if isinstance(recent, list) and recent else []
    return tuple(dict.fromkeys([*named, *newest]))[:MOST_ENTITIES]
