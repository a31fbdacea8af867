"""The skills that a conversation keeps loaded, and the tool `load_skill` with which a model loads another one."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from perdure.contracts.agents import AgentDefinition, PublishedAgent, SkillScope, ToolCard
from perdure.contracts.skills import Skill
from perdure.core.agents.prompts import skill_activation
from perdure.core.agents.toolsets import LoadedToolsets, engine_card, loaded_skills, ordered_skills, requested_cards
from perdure.core.text import estimated_tokens

LOAD_SKILL: Final = "load_skill"
SKILL_ARGUMENT: Final = "skill"


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


@dataclass(frozen=True, slots=True)
class SkillResult:
    """The result of a call to `load_skill`."""

    result: dict[str, JsonValue]
    """The result for the model."""
    skill_ids: tuple[str, ...] = ()
    """The skills that the call loads, a dependency before its dependents."""
    done: bool = False
    """False if the skill does not exist."""


def skill_loader_card(skills: Sequence[Skill]) -> ToolCard:
    """Returns the card of `load_skill` for an agent with these skills. It does not depend on what is loaded, so that a
    provider's cache stays valid."""
    ids: list[JsonValue] = [skill.id for skill in skills]
    parameters: dict[str, JsonValue] = {
        "type": "object",
        "properties": {SKILL_ARGUMENT: {"type": "string", "enum": ids}},
        "required": [SKILL_ARGUMENT],
        "additionalProperties": False,
    }
    description = (
        "Load a skill: its instructions and its tools, from your next step on. "
        "It stays loaded for this turn. A later turn may have to load it again."
    )
    return engine_card(LOAD_SKILL, description, parameters)


def cards_of_request(agent: PublishedAgent, names: Collection[str], toolsets: LoadedToolsets) -> list[ToolCard]:
    """Returns the cards of the offered tools `names` in the order of a request, `load_skill` first."""
    cards = requested_cards(agent.cards, names, toolsets)
    is_own = LOAD_SKILL in names and agent.card(LOAD_SKILL) is None
    return [skill_loader_card(agent.definition.skills), *cards] if is_own else cards


def load_skill(args: Mapping[str, JsonValue], agent: AgentDefinition, loaded: Collection[str]) -> SkillResult:
    """Loads a skill for a call with these arguments. `loaded` are the skills whose texts the model has."""
    skills = {skill.id: skill for skill in agent.skills}
    skill_id = args.get(SKILL_ARGUMENT)
    if not isinstance(skill_id, str) or skill_id not in skills:
        requested = repr(skill_id[:64]) if isinstance(skill_id, str) else "without a name"
        message = f"there is no skill {requested}; available skills: {', '.join(skills)}"
        return SkillResult({"status": "error", "message": message})
    dependencies = {skill.id: skill.dependencies for skill in agent.skills}
    new_ids = tuple(each for each in ordered_skills(dependencies, [skill_id]) if each not in loaded)
    if not new_ids:
        return SkillResult({"status": "already_loaded", "skill": skill_id}, done=True)
    before = {block.name for skill in loaded_skills(agent, loaded) for block in skill.blocks}
    after = [block for skill in loaded_skills(agent, [*loaded, skill_id]) for block in skill.blocks]
    new_tools: list[JsonValue] = [each.name for each in after if each.llm_visible and each.name not in before]
    return SkillResult({"status": "loaded", "skill": skill_id, "new_tools": new_tools}, new_ids, done=True)


def skill_of_block(agent: AgentDefinition, name: str) -> str:
    """Returns the id of the first skill that offers the code block `name` to the model; empty if none does."""
    return next(
        (skill.id for skill in agent.skills for block in skill.blocks if block.name == name and block.llm_visible), ""
    )
