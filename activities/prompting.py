"""The prompt of one model call: what the agent and its loaded skills bring, what is remembered, what was said.

Everything is made anew from references, per call: a turn that injects a skill marks it in the ledger and leaves no text
behind for the next one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue

from activities.persona import speaking
from contracts.agents import AgentDefinition, PublishedAgent
from contracts.messages import MessageRef, Role
from contracts.model import ModelCall
from contracts.skills import Skill
from policy.agent_stages import instructions_of, stands_alone, window_of
from policy.assembly import (
    PromptFacts,
    User,
    activation,
    persona_of,
    prefix,
    prompt_facts,
    template_messages,
    tier,
    with_cache_breakpoint,
)
from policy.bundles import context_message
from policy.loading import loaded_skills
from policy.prompt import Said, WireMessage, wire
from policy.text import without_word
from store import bundles, entities, injections
from store.database import Connection
from store.model_calls import ModelClaim
from store.prompts import said_messages


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model is sent, and the facts of how it was put together."""

    messages: list[WireMessage]
    assembly: dict[str, JsonValue]
    """The attributes of the source's three spans, by span (S0-23, S0-43); they go into `generation.complete`."""


async def prompt_of(tx: Connection, call: ModelCall, agent: PublishedAgent, claimed: ModelClaim) -> Prompt:
    """The messages of the request, in order: the prefix, memory, templates of the loaded skills, what was said.

    Effects: marks the skills that this turn injects; nothing where it injects none.
    """
    definition, override = speaking(agent, claimed.persona).definition, claimed.system_prompt
    user = User(str(call.ask.prompt.get("name", "")), str(call.ask.prompt.get("role", "")))
    refs = {ref.skill_id: ref for ref in call.ask.messages if ref.skill_id}
    loaded = loaded_skills(definition, refs)
    texts = await _injected(tx, call, [skill for skill in loaded if skill.id in refs], refs) if refs else {}
    said = await said_messages(
        tx, call, claimed.through_seq, window_of(definition, call.ask.stage), texts, compacted=claimed.compacted
    )
    said = [_heard(one, definition.words.get("bypass", "")) for one in said]
    if stands_alone(definition, call.ask.stage):
        return Prompt(wire(instructions_of(definition, call.ask.stage), "", said), {"stage": call.ask.stage})
    # The caller's own prompt stands as it is, without what the agent's skills would add to it (S0-22).
    templates = [] if override else template_messages(definition, loaded, user)
    instructions = instructions_of(definition, call.ask.stage)
    templates += [instructions] if instructions else []
    persona = persona_of(definition)
    base = prefix(definition, persona, user, override)  # once a call: it is as long as the manifest of all skills
    context = await _context(tx, call) if call.ask.sections or call.ask.guidance else []
    messages = wire(base, claimed.memory_text or "", said, [*templates, *context])
    facts = prompt_facts(persona, base, templates, overridden=bool(override))
    assembly = _assembly(call, definition, persona.key, facts, loaded)
    return Prompt(with_cache_breakpoint(messages, claimed.model), assembly)


def _heard(said: Said, bypass: str) -> Said:
    """What is said to the engine is not said to the model."""
    if said.role is not Role.USER:
        return said
    return replace(said, content=without_word(said.content, bypass) or said.content)


async def _context(tx: Connection, call: ModelCall) -> list[str]:
    """What the turn's context assembly has put together, and what is said with it."""
    found = await bundles.outputs(tx, call.address.conversation_id, call.ask.sections)
    return [text for text in (context_message(found), call.ask.guidance) if text]


async def _injected(
    tx: Connection, call: ModelCall, skills: Sequence[Skill], refs: dict[str, MessageRef]
) -> dict[str, str]:
    """The texts of the injected skills by id, each with what is known of its entities, and their mark in the ledger."""
    for highest in sorted({tier(skill) for skill in skills}):
        of_tier = [skill.id for skill in skills if tier(skill) == highest]
        await injections.mark(tx, call.address, of_tier, highest)
    named = {reference for ref in refs.values() for reference in ref.entities}
    known = await entities.referred(tx, sorted(named)) if named else {}
    return {
        skill.id: activation(skill, "\n".join(known[each] for each in refs[skill.id].entities if each in known))
        for skill in skills
    }


def _assembly(
    call: ModelCall, definition: AgentDefinition, persona_key: str, facts: PromptFacts, loaded: Sequence[Skill]
) -> dict[str, JsonValue]:
    blocks = {block.name for skill in definition.skills for block in skill.blocks}
    from_skills = sum(1 for name in call.ask.tools if name in blocks)
    return {
        "agent.resolve_definition": {"persona": persona_key},
        "prompt.assemble": {
            "persona_key": facts.persona_key,
            "persona_source": facts.persona_source,
            "context_template_count": facts.context_template_count,
            "user_identity_injected": facts.user_identity_injected,
            "token_estimate": facts.token_estimate,
        },
        "tools.assemble": {
            "core_capability_count": len(call.ask.tools) - from_skills,
            "skill_exposed_tool_count": from_skills,
            "total_tools_visible": len(call.ask.tools),
            "skills_loaded": [skill.id for skill in loaded],
        },
    }
