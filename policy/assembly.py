"""The parts of a prompt that come from the agent and its skills, and where each goes.

The prefix (persona, user block, manifest of all the agent's skills) is the same whatever is loaded, so a provider's
cache of it lasts (S0-19); what a loaded skill brings follows after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import JsonValue

from contracts.agents import AgentDefinition
from contracts.skills import Skill
from policy.model_families import is_claude
from policy.prompt import PLATFORM_DEFAULT_PERSONA, WireMessage, base_message, skill_list, skill_message
from policy.templates import filled
from policy.text import estimated_tokens

AGENT: Final = "agent"
ROOT_SKILL: Final = "root_skill"
PLATFORM: Final = "platform_default"
GENERAL_PERSONA = (
    f"{PLATFORM_DEFAULT_PERSONA} You have no special knowledge of any field. Where a request needs the knowledge, the "
    "data or the procedures of a particular field, say that this is not yours to do and that an agent for that field "
    "is needed, and do not attempt it."
)
"""The persona of a general agent: it names no field and refuses the work of all of them (S0-21)."""


@dataclass(frozen=True, slots=True)
class Persona:
    """Who speaks, and by whose word (S0-17)."""

    key: str
    source: Literal["agent", "root_skill", "platform_default"]
    text: str


@dataclass(frozen=True, slots=True)
class User:
    """For whom; empty where nothing is known."""

    name: str = ""
    role: str = ""


@dataclass(frozen=True, slots=True)
class PromptFacts:
    """What the span `prompt.assemble` tells (S0-23)."""

    persona_key: str
    persona_source: str
    context_template_count: int
    user_identity_injected: bool
    token_estimate: int
    """Of the prefix and the templates."""


def persona_of(agent: AgentDefinition) -> Persona:
    """The agent's own persona, else that of its root skill, else the platform's. No other skill has a say (S0-17)."""
    if agent.persona:
        return Persona(agent.persona_key or AGENT, AGENT, agent.persona)
    root = next((skill for skill in agent.skills if skill.id == agent.root_skill), None)
    if root is not None and root.persona:
        return Persona(root.persona_key or root.id, ROOT_SKILL, root.persona)
    general = agent.root_skill is None and not agent.skills and not agent.tools
    return Persona(PLATFORM, PLATFORM, GENERAL_PERSONA if general else PLATFORM_DEFAULT_PERSONA)


def manifest_entry(skill: Skill) -> str:
    """A skill as the manifest tells it, after its id (S0-64, tier 1)."""
    told = f"{skill.name}. {skill.description}"
    if skill.triggers:
        told += f" Triggers: {', '.join(skill.triggers)}."
    if skill.domain_tags:
        told += f" Tags: {', '.join(skill.domain_tags)}."
    return told


def manifest(skills: Sequence[Skill]) -> str:
    """Every skill of the agent that the model may ask for; empty where there are none."""
    return skill_list([(skill.id, manifest_entry(skill)) for skill in skills])


def prefix(agent: AgentDefinition, persona: Persona, user: User, override: str | None = None) -> str:
    """The message at index 0. The caller's own system prompt takes the place of all of it (S0-22)."""
    base = base_message(persona.text, user.name, user.role, override)
    return base if override else base + manifest(agent.skills)


def template_messages(agent: AgentDefinition, loaded: Sequence[Skill], user: User) -> list[str]:
    """The context templates of the loaded skills, a system message each, for the tail (S0-19)."""
    who = {"user_name": user.name or "user", "user_role": user.role, "agent_title": agent.title}
    return [
        filled(template.text, {**who, "skill_name": skill.name}) for skill in loaded for template in skill.templates
    ]


def activation(skill: Skill, entity_context: str = "") -> str:
    """The one system message of an injected skill: its definition, its artifacts, what is known of the entity at hand
    (S0-62, S0-63)."""
    parts = [skill_message(skill.name, skill.description, skill.body.strip())]
    parts += [f"## Artifact: {artifact.name}\n{artifact.text.strip()}" for artifact in skill.artifacts]
    if entity_context:
        parts.append(f"## Entity Context\n{entity_context}")
    return "\n\n".join(parts)


def tier(skill: Skill) -> int:
    """The highest tier that an injection of the skill brings: 3 with artifacts, else 2 (S0-14)."""
    return 3 if skill.artifacts else 2


def prompt_facts(persona: Persona, base: str, templates: Sequence[str], *, overridden: bool) -> PromptFacts:
    """The facts of one assembly whose prefix is `base`, for its span; `overridden` where that is the caller's own."""
    return PromptFacts(
        persona_key="" if overridden else persona.key,
        persona_source="caller" if overridden else persona.source,
        context_template_count=len(templates),
        user_identity_injected=not overridden,
        token_estimate=sum(map(estimated_tokens, [base, *templates])),
    )


def with_cache_breakpoint(messages: Sequence[WireMessage], model: str) -> list[WireMessage]:
    """`messages` with a cache breakpoint at the end of the prefix for a model of Anthropic's, else as they are
    (S0-20, S2-26)."""
    if not is_claude(model) or not messages or messages[0]["role"] != "system" or not messages[0]["content"]:
        return [*messages]  # Anthropic refuses a breakpoint on an empty text
    part: dict[str, JsonValue] = {
        "type": "text",
        "text": messages[0]["content"],
        "cache_control": {"type": "ephemeral"},
    }
    return [{**messages[0], "content": [part]}, *messages[1:]]
