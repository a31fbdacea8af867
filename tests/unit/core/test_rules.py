"""Rules: what a turn pins of its agent, which fire, for which calls, what that asks for, and their messages."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from perdure.contracts.agents import AgentDefinition, PlanCard, PublishedAgent, ToolCard, TurnPlan
from perdure.contracts.calls import EffectClass
from perdure.contracts.messages import CallRef
from perdure.contracts.skills import Checkpoint, PlanSkill, Rule, RuleAction, RuleTrigger, SkillText
from perdure.contracts.turns import Limits
from perdure.core.agents.plans import rules_of, turn_plan
from perdure.core.agents.rule_matching import (
    AnsweredCall,
    RuleMatch,
    after_round,
    before_round,
    deciding_match,
    matching_rules,
)
from perdure.core.agents.rules import (
    COUNTERS,
    NO_APPROVAL_BY_AUTHOR,
    NO_APPROVAL_FOR_READ,
    PLATFORM_RULES,
    RULE_FORCE_CLARIFY,
    InvalidCondition,
    Subject,
    applicable_rules,
    override_fault,
    read_condition,
    reasons_of,
    rule_paths,
    why_no_approval,
    with_overrides,
)
from perdure.core.approvals.gates import RULE_MUTATING
from tests.unit.core.skilled import agent, block, skill

BEFORE, AFTER = RuleTrigger.BEFORE_TOOL_CALL, RuleTrigger.AFTER_TOOL_CALL
RESULT: JsonValue = {"feet": 330, "ok": True, "rows": [{"n": 1.5}], "none": None}
DONE: dict[str, JsonValue] = {"status": "success", "result": RESULT}
CALL = Subject("assemble", "package.assemble", DONE, {"iteration": 3, "tokens_used": "many"})
overriding = st.dictionaries(st.sampled_from(["a:1", "a:2"]), st.text())
LOOK = Rule(id="app:look", on=BEFORE, when={"tool": ["pay"]}, do=RuleAction.REQUIRE_HITL, message="look first")
STOP = Rule(id="app:stop", on=BEFORE, when={"capability": ["money_*"]}, do=RuleAction.ABORT)
TASTE = Rule(id="app:taste", on=AFTER, when={"result": {"path": "ok", "equals": True}}, do=RuleAction.REQUIRE_HITL)


def rule(rule_id: str = "a:r", on: str = AFTER, do: str = RuleAction.REQUIRE_HITL, **fields: Any) -> Rule:
    return Rule.model_validate({"id": rule_id, "on": on, "do": do, **fields})


@pytest.mark.parametrize(("when", "holds"), [
    ({}, True), *(({"tool": tool}, True) for tool in ("assemble", ["other", "assemble"])),
    *(({"tool": tool}, False) for tool in ("assembl", ["other"])),
    *(({"capability": name}, True) for name in ("package.*", "package.assembl?", ["create_*", "package.assemble"])),
    *(({"capability": name}, False) for name in ("package", "PACKAGE.*", ["create_*"])),
    ({"result": {"path": "status", "equals": "success"}}, True),
    ({"result": {"path": "status", "equals": "error"}}, False),
    ({"result": {"path": "status", "one_of": ["error", "success"]}}, True),
    ({"result": {"path": "status", "one_of": ["error"]}}, False),
    ({"result": {"path": "result.feet", "at_least": 330}}, True),
    ({"result": {"path": "result.feet", "at_least": 330.5}}, False),
    ({"result": {"path": "result.feet", "at_most": 330}}, True),
    ({"result": {"path": "result.feet", "at_most": 329}}, False),
    ({"result": {"path": "result.feet", "equals": 330.0}}, True),
    ({"result": {"path": "result.ok", "equals": True}}, True),
    ({"result": {"path": "result.ok", "equals": 1}}, False),
    ({"result": {"path": "result.none", "equals": None}}, True),
    ({"result": {"path": "result.none", "equals": False}}, False),
    ({"result": {"path": "result.rows.0.n", "at_most": 1.5}}, True),
    ({"counter": {"name": "iteration", "at_least": 3}}, True),
    ({"counter": {"name": "iteration", "at_least": 4}}, False),
    ({"tool": "assemble", "capability": "package.*"}, True), ({"tool": "assemble", "capability": "create_*"}, False),
])  # fmt: skip
def test_a_rule_matches_if_all_its_conditions_hold(when: dict[str, Any], holds: bool) -> None:
    fires = matching_rules([rule(when=when)], AFTER, CALL)
    assert [(each.rule_id, each.unreadable) for each in fires] == ([("a:r", ())] if holds else [])


@pytest.mark.parametrize(("when", "place"), [
    ({"tols": "x"}, "tols"), *(({"tool": tool}, "tool") for tool in [7, [], "a b"]),
    *(({"capability": name}, "capability") for name in ("[ab]", ["package.*", None])),
    ({"result": "success"}, "result"), ({"result": {"path": "status", "like": "s"}}, "result.like"),
    ({"result": {"path": "status"}}, "result"), ({"result": {"equals": 1}}, "result.path"),
    *(({"result": {"path": path, "equals": 1}}, "result.path") for path in ("a..b", "gone", "result")),
    *(({"result": {"path": f"result.rows.{at}", "equals": 1}}, "result.path") for at in ("1.n", "-1")),
    *(({"result": {"path": path, "at_least": 1}}, "result.path") for path in ("status", "result.ok")),
    ({"result": {"path": "result.feet", "at_least": "1"}}, "result.at_least"),
    ({"result": {"path": "status", "equals": ["success"]}}, "result.equals"),
    ({"result": {"path": "status", "one_of": "success"}}, "result.one_of"),
    ({"result": {"path": "status", "one_of": []}}, "result.one_of"),
    *(({"counter": {"name": name, "at_least": 1}}, "counter.name") for name in ("rounds", "tokens_used")),
    ({"counter": {"name": "cost_microusd", "at_least": 1}}, "counter.name"),
    ({"counter": {"name": "iteration"}}, "counter.at_least"),
])  # fmt: skip
def test_an_unreadable_condition_matches_and_is_reported(when: dict[str, Any], place: str) -> None:
    (fired,) = matching_rules([rule(when=when)], AFTER, CALL)
    (said,) = fired.unreadable
    assert said.startswith(f"{place}: ")
    assert fired.event_data()["unreadable"] == [said]


def test_a_condition_that_is_false_disables_a_partly_unreadable_rule() -> None:
    assert matching_rules([rule(when={"tool": "other", "weather": "rain"})], AFTER, CALL) == ()
    (fired,) = matching_rules([rule(when={"tool": "assemble", "weather": "rain"})], AFTER, CALL)
    assert [each.partition(":")[0] for each in fired.unreadable] == ["weather"]


def test_a_rule_is_evaluated_at_its_trigger_and_an_unknown_trigger_before_each_call() -> None:
    rules = [rule("a:1", on=BEFORE), rule("a:2", on=AFTER), rule("a:3", on="at_dawn")]
    found = [(each.rule_id, len(each.unreadable)) for each in matching_rules(rules, BEFORE, CALL)]
    assert found == [("a:1", 0), ("a:3", 1)]
    assert [each.rule_id for each in matching_rules(rules, AFTER, CALL)] == ["a:2"]


def test_a_match_names_the_origin_of_its_rule() -> None:
    given = {"app": "shop", "skill_id": "tea", "checkpoint": "taste", "message": "Taste it."}
    (fired,) = matching_rules([rule("shop/tea:r", **given)], AFTER, CALL)
    told = {"rule_id": "shop/tea:r", "trigger": "after_tool_call", "tool": "assemble", "action": "require_hitl"}
    assert fired.event_data() == {**told, **given}


def test_matches_are_ordered_by_platform_app_and_skill() -> None:
    skilled = [rule("b/s:1", app="b", skill_id="s"), rule("a/t:1", app="a", skill_id="t")]
    rules = [*skilled, rule("b:2", app="b"), rule("platform:z"), rule("platform:a")]
    expected = ["platform:a", "platform:z", "b:2", "a/t:1", "b/s:1"]
    for turned in (rules, rules[::-1], rules[2:] + rules[:2]):
        assert [each.rule_id for each in matching_rules(turned, AFTER, CALL)] == expected


def test_the_strictest_match_decides_then_one_with_a_checkpoint() -> None:
    def decides(*rules: Rule) -> str | None:
        decided = deciding_match(matching_rules(rules, AFTER, CALL))
        return decided.rule_id if decided else None

    assert decides() is None
    assert decides(rule("a:1"), rule("a:2")) == "a:1"
    assert decides(rule("a:1"), rule("a:2", checkpoint="c")) == "a:2"
    assert decides(rule("a:1", checkpoint="c"), rule("a:2", do="abort")) == "a:2"
    assert decides(rule("a:1", do="abort"), rule("a:2", do="abort", app="b")) == "a:1"


def test_a_tenant_makes_a_rule_stricter_and_never_looser() -> None:
    rules = [rule("a:1"), rule("a:2", do="abort"), rule("a:3")]
    overridden = with_overrides(rules, {"a:1": "abort", "a:2": "require_hitl", "a:3": "ignore", "a:9": "abort"})
    assert [each.do for each in overridden] == ["abort", "abort", "require_hitl"]
    assert override_fault(rules[0], "abort") is None and override_fault(rules[1], "abort") is None
    for of, action in ((rules[1], "require_hitl"), (rules[0], "off"), (None, "abort")):
        assert override_fault(of, action) is not None


def test_the_platform_requires_approval_for_changes_of_entities() -> None:
    asked = {"create_entity", "update_entity", "link_entities", "batch_update", "batch_"}
    for capability in asked | {"", "batch", "x_create_entity", "read"}:
        fires = matching_rules(PLATFORM_RULES, BEFORE, Subject("t", capability))
        assert [each.rule_id for each in fires] == [RULE_MUTATING] * (capability in asked), capability


def test_after_three_failed_resolves_a_person_is_asked_and_a_tenant_may_abort() -> None:
    stricter = with_overrides(PLATFORM_RULES, {RULE_FORCE_CLARIFY: "abort"})
    for failed, action in ((0, None), (2, None), (3, RuleAction.ABORT), (4, RuleAction.ABORT)):
        subject = Subject("entity_resolve", counters={"consecutive_failed_resolves": failed})
        fires = matching_rules(PLATFORM_RULES, AFTER, subject)
        assert [each.rule_id for each in fires] == ([RULE_FORCE_CLARIFY] if action else [])
        decided = deciding_match(matching_rules(stricter, AFTER, subject))
        assert (decided and decided.action) == action


names = st.sampled_from(["assemble", "other", "x"])
numbers = st.integers(-2, 2) | st.floats(allow_nan=True, allow_infinity=True) | st.just(10**400)
plain = st.none() | st.booleans() | numbers | st.text(max_size=3)
results: st.SearchStrategy[Any] = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab0"), inner, max_size=2)
)
anything = st.recursive(plain, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2))
paths = st.sampled_from(["a", "a.b", "a.0", "0", "a.b.0", "", ".", "a." + "9" * 90])
tests = st.dictionaries(st.sampled_from(["at_least", "at_most", "equals", "one_of"]), anything, max_size=2)
fields = {
    "tool": names | st.lists(names, max_size=2) | anything,
    "capability": st.sampled_from(["*", "p.?", "q", "[", ""]) | anything,
    "result": tests.flatmap(lambda tests: paths.map(lambda path: {"path": path, **tests})) | anything,
    "counter": st.fixed_dictionaries({"name": st.sampled_from([*COUNTERS, "x"]), "at_least": numbers}) | anything,
    "weather": anything,
}
rules_given = st.builds(
    rule,
    rule_id=st.sampled_from(["a:1", "a:2", "a:3", "platform:1"]),
    on=st.sampled_from([BEFORE, AFTER, "at_dawn"]),
    do=st.sampled_from([RuleAction.ABORT, RuleAction.REQUIRE_HITL, "shrug"]),
    when=st.fixed_dictionaries({}, optional=fields),
    app=st.sampled_from(["", "a"]),
    checkpoint=st.sampled_from(["", "c"]),
)
counters = st.none() | st.dictionaries(st.sampled_from(COUNTERS), plain, max_size=2)
subjects = st.builds(Subject, names, st.sampled_from(["", "p.x", "q"]), results, counters)
triggers = st.sampled_from([BEFORE, AFTER])


def _judged(given: Rule, subject: Subject) -> Iterator[bool | None]:
    """Each condition by itself: whether it holds, None where it cannot be read."""
    for name, value in given.when.items():
        try:
            yield read_condition(name, value)(subject)
        except InvalidCondition:
            yield None


@given(rules_given, triggers, subjects)
def test_only_a_readable_false_condition_disables_a_rule(given: Rule, trigger: RuleTrigger, subject: Subject) -> None:
    fires = matching_rules([given], trigger, subject)
    judged = [*_judged(given, subject)]
    asked = given.on == trigger or (given.on == "at_dawn" and trigger is BEFORE)
    assert bool(fires) is (asked and False not in judged)
    for each in fires:
        strange = (given.on == "at_dawn") + (given.do == "shrug") + judged.count(None)
        assert len(each.unreadable) == strange
        assert each.action is (RuleAction.ABORT if given.do == "abort" else RuleAction.REQUIRE_HITL)


@given(st.lists(rules_given, max_size=4), triggers, subjects, st.randoms(), overriding)
def test_no_order_additional_rule_or_override_removes_a_stop(
    rules: list[Rule], trigger: RuleTrigger, subject: Subject, chance: Any, overrides: dict[str, str]
) -> None:
    fires = matching_rules(rules, trigger, subject)
    turned = [*rules]
    chance.shuffle(turned)
    assert sorted(map(repr, matching_rules(turned, trigger, subject))) == sorted(map(repr, fires))
    overridden = matching_rules(with_overrides(rules, overrides | {"a:3": "abort"}), trigger, subject)
    assert len(overridden) == len(fires) and _is_as_strict(deciding_match(overridden), deciding_match(fires))
    assert _is_as_strict(deciding_match(fires), deciding_match(matching_rules(rules[1:], trigger, subject)))


def _is_as_strict(more: RuleMatch | None, fewer: RuleMatch | None) -> bool:
    if fewer is None:
        return True
    return more is not None and (more.action is RuleAction.ABORT or fewer.action is not RuleAction.ABORT)


FAILED = "consecutive_failed_resolves"
CARDS = (
    PlanCard(name="look", effect=EffectClass.READ, needs_approval=False),
    PlanCard(name="make", effect=EffectClass.LOCAL, needs_approval=False, capability="create_entity"),
    PlanCard(name="pay", effect=EffectClass.KEYED, needs_approval=True),
)
NONE: dict[str, JsonValue] = {FAILED: 0, "iteration": 0, "tokens_used": 0, "cost_microusd": 0}


def plan(*rules: Rule, cards: tuple[PlanCard, ...] = CARDS) -> TurnPlan:
    return TurnPlan(agent_id="a", agent_version="v", persona_key="", limits=Limits(), cards=cards, rules=rules)


def call(call_id: str, tool: str) -> CallRef:
    return CallRef(call_id=call_id, tool=tool, digest="d")


def answered_call(call_id: str, tool: str, facts: dict[str, JsonValue] | None = None, failed: int = 0) -> AnsweredCall:
    return AnsweredCall(call(call_id, tool), facts or {}, {**NONE, FAILED: failed})


LOOK_FIRST = rule("app/s:first", BEFORE, when={"tool": "look"}, message="why", checkpoint="looking")
NO_PAY = rule("app/s:never", BEFORE, "abort", when={"tool": "pay"}, message="not here")
SEE = rule("app/s:see", AFTER, when={"tool": "look"}, checkpoint="seen", skill_id="s")
MANY = rule("app/s:many", AFTER, when={"tool": "look", "result": {"path": "found.count", "at_least": 3}})


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


@pytest.mark.parametrize(("rules", "goes_on"), [
    ((SEE,), True), ((SEE, rule("app/s:also", AFTER, when={"tool": "look"}, checkpoint="read", skill_id="s")), False),
    ((SEE, rule("platform:also", AFTER, when={"tool": "look"})), False),
    ((SEE.model_copy(update={"skill_id": ""}),), False), ((SEE.model_copy(update={"checkpoint": "read"}),), False),
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


def test_rules_that_no_tool_can_trigger_are_not_pinned_but_unreadable_ones_are() -> None:
    strange = rule("app:odd", "on_full_moon", when={"weather": "rain"})
    elsewhere = rule("app:other", BEFORE, when={"tool": "nobodys"})
    kept = applicable_rules([*PLATFORM_RULES, strange, elsewhere, SEE], CARDS)
    assert [each.id for each in kept] == [RULE_MUTATING, "app:odd", "app/s:see"]
    counting = PlanCard(name="find", effect=EffectClass.LOCAL, needs_approval=False, wants_state=(FAILED,))
    assert [each.id for each in applicable_rules(PLATFORM_RULES, [counting])] == [RULE_FORCE_CLARIFY]
    assert applicable_rules(PLATFORM_RULES, CARDS[:1]) == ()


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


RULE = Rule(id="shop/a:r", on=AFTER, when={"tool": "t"}, do="require_hitl", app="shop", skill_id="a")
HOUSE = Rule(id="shop:h", on=BEFORE, when={"tool": "t"}, do="abort", app="shop")
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
