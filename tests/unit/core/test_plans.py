"""What a turn pins of its agent."""

import pytest

from perdure.contracts.agents import AgentDefinition, PublishedAgent, ToolCard, TurnPlan
from perdure.contracts.skills import Checkpoint, Rule, SkillText
from perdure.contracts.turns import Limits
from perdure.core.agents.plans import rules_of, turn_plan
from perdure.core.agents.rules import PLATFORM_RULES, RULE_FORCE_CLARIFY
from tests.unit.core.skilled import agent, block, skill

RULE = Rule(id="shop/a:r", on="after_tool_call", when={"tool": "t"}, do="require_hitl", app="shop", skill_id="a")
HOUSE = Rule(id="shop:h", on="before_tool_call", when={"tool": "t"}, do="abort", app="shop")
PLANNED = {"name": "t", "effect": "local", "needs_approval": True, "capability": "c"}
CARD = ToolCard.model_validate({**PLANNED, "description": "d", "parameters": {}, "version": "1"})


def published_agent(definition: AgentDefinition, **fields: object) -> PublishedAgent:
    return PublishedAgent.model_validate({"definition": definition, "cards": (CARD,), "version": "v", **fields})


@pytest.mark.parametrize(("definition", "persona_key", "skill_ids"), [
    (agent(), "platform_default", []),
    (agent(persona="Be kind."), "agent", []),
    (agent(skill("a"), skill("b")), "platform_default", ["a", "b"]),
])  # fmt: skip
def test_persona_and_skills_are_pinned(definition: AgentDefinition, persona_key: str, skill_ids: list[str]) -> None:
    pinned = turn_plan(published_agent(definition), Limits())
    assert pinned.model_dump(mode="json") == {
        "agent_id": "agent", "agent_version": "v", "persona_key": persona_key, "skill_ids": skill_ids,
        "limits": {"max_tokens": 100_000, "max_cost_microusd": 5_000_000, "max_iterations": 20},
        "cards": [{**PLANNED, "timeout_seconds": 30.0, "wants_state": []}], "model": "scripted",
    }  # fmt: skip
    assert TurnPlan.model_validate_json(pinned.model_dump_json()) == pinned


def test_the_reviewers_that_an_agent_names_are_pinned() -> None:
    pinned = turn_plan(published_agent(agent(approvals={"reviewers": ["ann", "bob"]}, model="openai/small")), Limits())
    assert (pinned.reviewers, pinned.model) == (("ann", "bob"), "openai/small")


def test_a_plan_contains_the_rules_of_a_skill_and_not_its_texts() -> None:
    secret = SkillText(name="t", text="SECRET")
    texts = {"persona": "Be a host.", "persona_key": "host", "templates": (secret,), "artifacts": (secret, secret)}
    blocks = (block("seen", source="SECRET"), block("unseen", llm_visible=False))
    look = Checkpoint(name="look")
    full = skill("a", dependencies=("b",), checkpoints=(look,), rules=(RULE,), blocks=blocks, **texts)
    agent_of_it = published_agent(agent(full, skill("b"), root_skill="a"), rules=(HOUSE,))
    pinned = turn_plan(agent_of_it, Limits(), rules_of(agent_of_it, PLATFORM_RULES, {}))
    told = pinned.model_dump(mode="json")
    counted = {"tools": ["seen"], "templates": 1, "artifacts": 2, "checkpoints": [{"name": "look"}]}
    assert told["skills"] == [{"id": "a", "dependencies": ["b"], **counted}]
    assert (pinned.persona_key, pinned.persona_source, pinned.root_skill) == ("host", "root_skill", "a")
    assert pinned.skill_ids == ("a", "b")
    assert "SECRET" not in pinned.model_dump_json()
    assert TurnPlan.model_validate(told) == pinned


def test_a_turns_rules_are_the_platforms_the_apps_and_its_skills_with_overrides() -> None:
    agent_of_it = published_agent(agent(skill("a", rules=(RULE,))), rules=(HOUSE,))
    rules = rules_of(agent_of_it, PLATFORM_RULES, {RULE_FORCE_CLARIFY: "abort", "shop:h": "require_hitl"})
    assert {rule.id: rule.do for rule in rules} == {
        **{rule.id: rule.do for rule in PLATFORM_RULES},
        RULE_FORCE_CLARIFY: "abort",
        "shop:h": "abort",
        "shop/a:r": "require_hitl",
    }
