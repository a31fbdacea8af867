"""Which skills of an agent are loaded, and so which tools its model is offered (S0-41)."""

from collections.abc import Iterable, Mapping, Sequence

from contracts.agents import AgentDefinition, TurnPlan
from contracts.skills import Skill


def loaded_skills(agent: AgentDefinition, injected: Iterable[str]) -> tuple[Skill, ...]:
    """The root skill and the injected ones, each with all that it depends on, in the agent's order."""
    loaded = _reached({skill.id: skill.dependencies for skill in agent.skills}, agent.root_skill or "", injected)
    return tuple(skill for skill in agent.skills if skill.id in loaded)


def loaded_ids(plan: TurnPlan, injected: Iterable[str]) -> tuple[str, ...]:
    """The same for a plan, by id."""
    dependencies = dict.fromkeys(plan.skill_ids, ()) | {skill.id: skill.dependencies for skill in plan.skills}
    loaded = _reached(dependencies, plan.root_skill, injected)
    return tuple(skill_id for skill_id in plan.skill_ids if skill_id in loaded)


def offered_tools(plan: TurnPlan, injected: Iterable[str]) -> tuple[str, ...]:
    """The tools of a model call, in the plan's order: all but the blocks of skills that are not loaded."""
    loaded = loaded_ids(plan, injected)
    blocks = {name for skill in plan.skills for name in skill.tools}
    visible = {name for skill in plan.skills if skill.id in loaded for name in skill.tools}
    return tuple(card.name for card in plan.cards if card.name not in blocks or card.name in visible)


def brought_by(plan: TurnPlan, selected: Iterable[str]) -> tuple[str, ...]:
    """The selected skills and all that they depend on, a dependency before what needs it."""
    dependencies = dict.fromkeys(plan.skill_ids, ()) | {skill.id: skill.dependencies for skill in plan.skills}
    ordered: dict[str, None] = {}
    under_way: set[str] = set()

    def bring(skill_id: str) -> None:
        if skill_id not in dependencies or skill_id in under_way:
            return
        under_way.add(skill_id)
        for each in dependencies[skill_id]:
            bring(each)
        ordered[skill_id] = None

    for skill_id in selected:
        bring(skill_id)
    return tuple(ordered)


def _reached(dependencies: Mapping[str, Sequence[str]], root: str, injected: Iterable[str]) -> set[str]:
    """The skills that one comes to from these; an id that the agent has not is passed over."""
    reached: set[str] = set()
    waiting = [root, *injected]
    while waiting:
        skill_id = waiting.pop()
        if skill_id in dependencies and skill_id not in reached:
            reached.add(skill_id)
            waiting += dependencies[skill_id]
    return reached
