"""Where the parts of a prompt go, and what never moves."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.agents import AgentDefinition
from perdure.contracts.messages import Role
from perdure.contracts.skills import SkillText
from perdure.core.agents.prompts import (
    GENERAL_PERSONA,
    PLATFORM_DEFAULT_PERSONA,
    Persona,
    Said,
    User,
    activation,
    manifest,
    persona_of,
    prefix,
    prompt_facts,
    skill_message,
    template_messages,
    tier,
    wire,
    with_cache_breakpoint,
)
from perdure.core.agents.toolsets import loaded_skills
from perdure.core.text import estimated_tokens
from tests.repo.test_domain_words import ANYWHERE
from tests.unit.core.skilled import agent, agents, injections, skill, texts

ANN = User("Ann", "clerk")
HOST = {"persona": "Be a host.", "persona_key": "host"}


def said_first(definition: AgentDefinition, user: User, override: str | None = None) -> str:
    """The prefix, of the persona that the agent has."""
    return prefix(definition, persona_of(definition), user, override)


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        (agent(skill("a", **HOST), root_skill="a", persona="Own.", persona_key="own"), Persona("own", "agent", "Own.")),
        (agent(skill("a", **HOST), root_skill="a", persona="Own."), Persona("agent", "agent", "Own.")),
        (agent(skill("a", **HOST), root_skill="a"), Persona("host", "root_skill", "Be a host.")),
        (
            agent(skill("a", dependencies=("b",)), skill("b", **HOST), root_skill="a"),
            Persona("platform_default", "platform_default", PLATFORM_DEFAULT_PERSONA),
        ),
        (agent(skill("b", **HOST)), Persona("platform_default", "platform_default", PLATFORM_DEFAULT_PERSONA)),
        (agent(tools=("t",)), Persona("platform_default", "platform_default", PLATFORM_DEFAULT_PERSONA)),
        (agent(), Persona("platform_default", "platform_default", GENERAL_PERSONA)),
    ],
)
def test_the_agents_own_persona_comes_before_that_of_its_root_skill_and_no_other_skill_has_a_say(
    definition: AgentDefinition, expected: Persona
) -> None:
    assert persona_of(definition) == expected


def test_a_general_agent_knows_no_field_and_is_told_to_refuse_the_work_of_any() -> None:
    said = said_first(agent(), User())
    assert not ANYWHERE.search(said) and "do not attempt it" in said
    assert template_messages(agent(), loaded_skills(agent(), ["a"]), ANN) == []


def test_the_prefix_is_persona_user_block_and_manifest_or_the_callers_own_prompt() -> None:
    skilled = agent(
        skill("a", triggers=("brew", "kettle"), domain_tags=("drinks",)), skill("b"), root_skill="b", persona="Be kind."
    )
    assert said_first(skilled, ANN).splitlines() == [
        "Be kind.",
        "",
        "=== User ===",
        "Name: Ann",
        "Role: clerk",
        "",
        "=== Skills ===",
        "To use one, write SKILL_SELECT:<id> in your answer.",
        "- a: A. Does a. Triggers: brew, kettle. Tags: drinks.",
        "- b: B. Does b.",
    ]
    assert said_first(skilled, ANN, "My own.") == "My own."
    assert manifest([]) == ""


def test_an_activated_skill_is_one_message_with_its_sections_in_order() -> None:
    artifacts = (SkillText(name="one.md", text="First.\n"), SkillText(name="two.md", text="Second."))
    given_skill = skill("a", body="## Steps\n1. Do.\n", artifacts=artifacts)
    assert activation(given_skill, "Mary: a person").split("\n\n") == [
        "=== Skill Activated: A ===\n## Description\nDoes a.",
        "## Steps\n1. Do.",
        "## Artifact: one.md\nFirst.",
        "## Artifact: two.md\nSecond.",
        "## Entity Context\nMary: a person",
    ]
    assert activation(skill("b")) == skill_message("B", "Does b.", "Body of b.")
    assert (tier(given_skill), tier(skill("b"))) == (3, 2)


def test_templates_of_loaded_skills_are_filled_and_come_in_the_agents_order() -> None:
    template = SkillText(name="t.md", text="{{user_name}} ({{ user_role }}) at {{agent_title}} with {{skill_name}}.")
    skilled = agent(skill("a", templates=(template,)), skill("b"), skill("c", templates=(template,)), root_skill="c")
    assert template_messages(skilled, loaded_skills(skilled, ["a"]), ANN) == [
        "Ann (clerk) at The agent with A.",
        "Ann (clerk) at The agent with C.",
    ]
    assert template_messages(skilled, loaded_skills(skilled, []), User()) == ["user () at The agent with C."]


@pytest.mark.parametrize("model", ["openai/gpt-4o", "anthropic/claude", "scripted"])
@given(definition=agents, user=st.builds(User, texts, texts), first=injections, second=injections, memory=texts)
def test_loading_and_unloading_skills_leaves_the_prefix_byte_for_byte(
    model: str, definition: AgentDefinition, user: User, first: list[str], second: list[str], memory: str
) -> None:
    prefixes = set()
    for injected in (first, second, [], first + second):
        loaded = loaded_skills(definition, injected)
        templates = template_messages(definition, loaded, user)
        said = [Said(Role.SYSTEM, activation(each)) for each in loaded] + [Said(Role.USER, "hello")]
        sent = with_cache_breakpoint(wire(said_first(definition, user), memory, said, templates), model)
        prefixes.add(json.dumps(sent[0]).encode())
        # What the skills bring follows: each template is a system message of its own, none is there twice.
        shown = [text for text in templates if text]
        head = 1 + bool(memory)
        assert [message["content"] for message in sent[head : head + len(shown)]] == shown
        assert [message["role"] for message in sent[: head + len(shown)]] == ["system"] * (head + len(shown))
        assert len(sent) == head + len(shown) + len(said)
    assert len(prefixes) == 1


@pytest.mark.parametrize(
    ("model", "marked"),
    [
        ("anthropic/claude-sonnet", True),
        ("bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0", True),
        ("vertex_ai/claude-sonnet-4-5", True),
        ("bedrock/amazon.nova-pro-v1:0", False),
        ("vertex_ai/gemini-2.5-pro", False),
        ("openai/gpt-4o", False),
        ("gpt-4o", False),
        ("openrouter/anthropic/claude", False),
        ("anthropics/claude", False),
        ("scripted", False),
    ],
)
def test_only_anthropics_own_path_gets_a_cache_breakpoint_and_only_at_the_end_of_the_prefix(
    model: str, marked: bool
) -> None:
    messages = wire("base", "memory", [Said(Role.USER, "hello")], ["template"])
    sent = with_cache_breakpoint(messages, model)
    assert len(re.findall("cache_control", json.dumps(sent))) == marked
    assert sent[1:] == messages[1:]
    marked_base = [{"type": "text", "text": "base", "cache_control": {"type": "ephemeral"}}]
    assert sent[0] == {"role": "system", "content": marked_base if marked else "base"}
    assert messages[0]["content"] == "base"


@pytest.mark.parametrize("messages", [[], [{"role": "user", "content": "x"}], [{"role": "system", "content": ""}]])
def test_without_a_prefix_there_is_no_breakpoint(messages: list[dict[str, object]]) -> None:
    assert with_cache_breakpoint(messages, "anthropic/claude") == messages  # type: ignore[arg-type]


def test_the_facts_of_an_assembly_are_those_of_its_span() -> None:
    skilled = agent(skill("a", **HOST), root_skill="a")
    persona, base = persona_of(skilled), said_first(skilled, ANN)
    facts = prompt_facts(persona, base, ["x" * 8], overridden=False)
    assert (facts.persona_key, facts.persona_source, facts.context_template_count) == ("host", "root_skill", 1)
    assert facts.user_identity_injected and facts.token_estimate == estimated_tokens(base) + 2
    own = prompt_facts(persona, said_first(skilled, ANN, "Mine."), [], overridden=True)
    assert (own.persona_key, own.persona_source, own.user_identity_injected) == ("", "caller", False)
    assert own.token_estimate == 2
