"""The rules and skills that a turn pins of its agent, the calls that rules match, and their messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from perdure.contracts.agents import AgentDefinition, PlanCard, PublishedAgent, ToolCard, TurnPlan
from perdure.contracts.approvals import RequestKind
from perdure.contracts.calls import EffectClass
from perdure.contracts.messages import CallRef
from perdure.contracts.skills import Checkpoint, PlanSkill, Rule, RuleAction, RuleTrigger, SkillText
from perdure.contracts.turns import Limits
from perdure.core.agents.plans import rules_of, turn_plan
from perdure.core.agents.rule_matching import AnsweredCall, after_round, before_round
from perdure.core.agents.rules import (
    NO_APPROVAL_BY_AUTHOR,
    NO_APPROVAL_FOR_READ,
    PLATFORM_RULES,
    RULE_FORCE_CLARIFY,
    applicable_rules,
    reasons_of,
    rule_paths,
    why_no_approval,
)
from perdure.core.approvals.gates import RULE_MUTATING
from tests.unit.core.skilled import agent, block, skill

FAILED = "consecutive_failed_resolves"
CARDS = (
    PlanCard(name="look", effect=EffectClass.READ, needs_approval=False),
    PlanCard(name="make", effect=EffectClass.LOCAL, needs_approval=False, capability="create_entity"),
    PlanCard(name="pay", effect=EffectClass.KEYED, needs_approval=True),
)
NONE: dict[str, JsonValue] = {FAILED: 0, "iteration": 0, "tokens_used": 0, "cost_microusd": 0}


def plan(*rules: Rule, cards: tuple[PlanCard, ...] = CARDS) -> TurnPlan:
    return TurnPlan(agent_id="a", agent_version="v", persona_key="", limits=Limits(), cards=cards, rules=rules)


def rule(rule_id: str, on: str, do: str = "require_hitl", **given: object) -> Rule:
    return Rule.model_validate({"id": rule_id, "on": on, "do": do, **given})


def call(call_id: str, tool: str) -> CallRef:
    return CallRef(call_id=call_id, tool=tool, digest="d")


def answered_call(call_id: str, tool: str, facts: dict[str, JsonValue] | None = None, failed: int = 0) -> AnsweredCall:
    return AnsweredCall(call(call_id, tool), facts or {}, {**NONE, FAILED: failed})


LOOK_FIRST = rule("app/s:first", "before_tool_call", when={"tool": "look"}, message="why", checkpoint="looking")
NO_PAY = rule("app/s:never", "before_tool_call", "abort", when={"tool": "pay"}, message="not here")
SEE = rule("app/s:see", "after_tool_call", when={"tool": "look"}, checkpoint="seen", skill_id="s")
MANY = rule("app/s:many", "after_tool_call", when={"tool": "look", "result": {"path": "found.count", "at_least": 3}})


def test_a_rule_and_an_effect_class_both_gate_a_call_and_the_rules_message_is_shown() -> None:
    ruled = before_round(plan(LOOK_FIRST), [call("t1.0", "look"), call("t1.1", "pay"), call("t1.2", "make")], NONE)
    assert [(each.call_id, each.rule, each.message, each.checkpoint) for each in ruled.gated] == [
        ("t1.0", "app/s:first", "why", "looking"),
        ("t1.1", RULE_MUTATING, "", ""),
    ]
    assert [(each.call_id, each.match.rule_id) for each in ruled.matched] == [("t1.0", "app/s:first")]
    assert ruled.abort is None


def test_a_rule_that_aborts_ends_the_turn_whatever_else_is_gated() -> None:
    ruled = before_round(plan(LOOK_FIRST, NO_PAY), [call("t1.0", "look"), call("t1.1", "pay")], NONE)
    assert ruled.abort is not None and ruled.abort.message == "not here"
    assert [each.match.rule_id for each in ruled.matched] == ["app/s:first", "app/s:never"]


def test_a_checkpoint_has_an_id_of_its_own_and_the_name_that_its_rule_gives() -> None:
    (asked,) = after_round(plan(SEE), [answered_call("t2.1", "look"), answered_call("t2.2", "pay")]).gated
    assert (asked.call_id, asked.tool, asked.kind, asked.checkpoint) == ("c2.1", "look", RequestKind.CHECKPOINT, "seen")


@pytest.mark.parametrize(("rules", "goes_on"), [
    ((SEE,), True),
    ((SEE, rule("app/s:also", "after_tool_call", when={"tool": "look"}, checkpoint="read", skill_id="s")), False),
    ((SEE, rule("platform:also", "after_tool_call", when={"tool": "look"})), False),
    ((SEE.model_copy(update={"skill_id": ""}),), False),
    ((SEE.model_copy(update={"checkpoint": "read"}),), False),
], ids=["its own rule", "another checkpoint", "the platform too", "of no skill", "not that one"])  # fmt: skip
def test_a_checkpoint_is_skipped_if_all_its_rules_allow_it(rules: tuple[Rule, ...], goes_on: bool) -> None:
    checkpoints = (Checkpoint(name="seen", go_on_when_unavailable=True), Checkpoint(name="read"))
    allowing = plan(*rules).model_copy(update={"skills": (PlanSkill(id="s", checkpoints=checkpoints),)})
    (asked,) = after_round(allowing, [answered_call("t1.0", "look")]).gated
    assert asked.go_on_when_unavailable is goes_on
    assert ("go_on_when_unavailable" in asked.model_dump(mode="json")) is goes_on


def test_a_condition_on_a_result_reads_its_facts_and_matches_if_they_are_missing() -> None:
    def gated(**facts: JsonValue) -> list[str]:
        return [each.checkpoint for each in after_round(plan(MANY), [answered_call("t1.0", "look", facts)]).gated]

    assert gated(**{"found.count": 3}) == gated(**{"found.count": "many"}) == gated() == ["many"]
    assert gated(**{"found.count": 2}) == []
    assert rule_paths(plan(MANY, SEE), "look") == ("found.count",)
    assert rule_paths(plan(MANY, SEE), "pay") == rule_paths(plan(MANY), "nobodys") == ()


def test_a_rule_on_a_counter_alone_fires_once_a_round() -> None:
    failing = [answered_call(f"t1.{place}", "look", failed=failed) for place, failed in enumerate((2, 3, 3))]
    ruled = after_round(plan(*PLATFORM_RULES), failing)
    checkpoint = RULE_FORCE_CLARIFY.partition(":")[2]
    assert [(each.call_id, each.checkpoint) for each in ruled.gated] == [("c1.1", checkpoint)]
    assert len(ruled.matched) == 1


def test_rules_that_no_tool_can_trigger_are_not_pinned_but_unreadable_ones_are() -> None:
    strange = rule("app:odd", "on_full_moon", when={"weather": "rain"})
    elsewhere = rule("app:other", "before_tool_call", when={"tool": "nobodys"})
    kept = applicable_rules([*PLATFORM_RULES, strange, elsewhere, SEE], CARDS)
    assert [each.id for each in kept] == [RULE_MUTATING, "app:odd", "app/s:see"]
    counting = PlanCard(name="find", effect=EffectClass.LOCAL, needs_approval=False, wants_state=(FAILED,))
    assert [each.id for each in applicable_rules(PLATFORM_RULES, [counting])] == [RULE_FORCE_CLARIFY]
    assert applicable_rules(PLATFORM_RULES, CARDS[:1]) == ()


BEFORE, AFTER = RuleTrigger
LOOK = Rule(id="app:look", on=BEFORE, when={"tool": ["pay"]}, do=RuleAction.REQUIRE_HITL, message="look first")
STOP = Rule(id="app:stop", on=BEFORE, when={"capability": ["money_*"]}, do=RuleAction.ABORT)
TASTE = Rule(id="app:taste", on=AFTER, when={"result": {"path": "ok", "equals": True}}, do=RuleAction.REQUIRE_HITL)


def card(name: str = "pay", effect: str = "keyed", *, gated: bool = True, capability: str = "") -> ToolCard:
    return ToolCard(
        name=name, description="", parameters={}, effect=EffectClass(effect), needs_approval=gated,
        capability=capability, version="v",
    )  # fmt: skip


HELD, STOPPED = (RULE_MUTATING, "require_hitl"), (RULE_MUTATING, "abort")
NEW = card("new", "local", capability="create_entity")
STRICT = PLATFORM_RULES[0].model_copy(update={"do": RuleAction.ABORT.value})


@pytest.mark.parametrize(("of", "rules", "told"), [
    *((each, (), [HELD]) for each in (card(), card(effect="opaque"), card(effect="read", gated=True))),
    (card(effect="read", gated=False), (), []),
    (card(effect="local", gated=False), (STOP,), []),
    (card(gated=False), (LOOK,), [("app:look", "require_hitl")]),
    (card(), (LOOK, STOP), [HELD, ("app:look", "require_hitl")]),
    (card("see", "read", gated=False, capability="money_out"), (LOOK, STOP), [("app:stop", "abort")]),
    (card("see", "read", gated=False), (TASTE,), [("app:taste", "require_hitl")]),
    (NEW, PLATFORM_RULES, [HELD]),
    (NEW, (STRICT,), [HELD, STOPPED]),  # a tenant's stricter rule is listed beside the card's own
])  # fmt: skip
def test_a_tool_lists_what_can_stop_it(of: ToolCard, rules: tuple[Rule, ...], told: list[tuple[str, str]]) -> None:
    found = reasons_of(of, rules)
    assert [(each.rule, each.action) for each in found] == told
    assert all(each.why == "look first" for each in found if each.rule == LOOK.id), "in the rule's own words"


def test_a_tool_without_a_gate_says_why_it_has_none() -> None:
    assert why_no_approval(card(effect="read", gated=False)) == NO_APPROVAL_FOR_READ
    assert why_no_approval(card(effect="local", gated=False)) == NO_APPROVAL_BY_AUTHOR


@given(
    name=st.sampled_from(["pay", "see"]),
    effect=st.sampled_from([each.value for each in EffectClass]),
    gated=st.booleans(),
    capability=st.sampled_from(["", "money_out", "create_entity"]),
    rules=st.lists(st.sampled_from([LOOK, STOP, TASTE, *PLATFORM_RULES]), unique_by=lambda rule: rule.id),
)
def test_what_stops_a_call_is_a_reason(name: str, effect: str, gated: bool, capability: str, rules: list[Rule]) -> None:
    of = card(name, effect, gated=gated, capability=capability)
    planned = PlanCard(name=name, effect=of.effect, needs_approval=gated, capability=capability)
    ruled = before_round(plan(*rules, cards=(planned,)), [call("t1.0", name)], {})
    told = {(each.rule, each.action) for each in reasons_of(of, rules) if each.trigger == BEFORE}
    assert {(each.rule, "require_hitl") for each in ruled.gated} <= told
    assert ruled.abort is None or (ruled.abort.rule_id, "abort") in told


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
