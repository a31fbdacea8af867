"""The skills that a conversation keeps loaded: which of those that its earlier turns loaded a new turn starts with."""

from collections.abc import Sequence
from dataclasses import dataclass

from perdure.contracts.agents import AgentDefinition, SkillScope
from perdure.contracts.skills import Skill
from perdure.core.agents.prompts import skill_activation
from perdure.core.agents.toolsets import ordered_skills
from perdure.core.text import estimated_tokens


@dataclass(frozen=True, slots=True)
class SkillLoad:
    """A skill that an earlier turn of the conversation loaded."""

    skill_id: str
    turns_ago: int
    """The number of turns since the newest turn that loaded it; 1 for the turn before this one."""


def kept_skills(agent: AgentDefinition, loads: Sequence[SkillLoad]) -> tuple[str, ...]:
    """Returns the ids of the skills that a new turn of the agent starts with, a dependency before its dependents.

    `loads` are in the order in which the skills were loaded. If their texts are longer than the agent allows, the
    skills that were loaded last are kept. Without a change the order is that of the turn before, so that a provider's
    cache stays valid.
    """
    if agent.skill_scope is SkillScope.TURN:
        return ()
    skills = {skill.id: skill for skill in agent.skills}
    dependencies = {skill.id: skill.dependencies for skill in agent.skills}
    most_turns, tokens_left = agent.skill_turns, agent.skill_tokens
    recent = [each for each in loads if most_turns is None or each.turns_ago <= most_turns]
    kept: set[str] = set()
    for load in reversed(recent):
        added = [each for each in ordered_skills(dependencies, [load.skill_id]) if each not in kept]
        tokens = sum(text_tokens(skills[each]) for each in added)
        if tokens <= tokens_left:
            kept |= {*added}
            tokens_left -= tokens
    return tuple(each for each in ordered_skills(dependencies, [load.skill_id for load in recent]) if each in kept)


def text_tokens(skill: Skill) -> int:
    """Returns the estimated tokens of the skill's text for the model, without entities and templates."""
    return estimated_tokens(skill_activation(skill))
