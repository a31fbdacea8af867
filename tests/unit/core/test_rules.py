"""Which rules fire, and what that asks for."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from perdure.contracts.skills import Rule, RuleAction, RuleTrigger
from perdure.core.agents.rule_matching import RuleMatch, deciding_match, matching_rules
from perdure.core.agents.rules import (
    COUNTERS,
    PLATFORM_RULES,
    RULE_FORCE_CLARIFY,
    InvalidCondition,
    Subject,
    override_fault,
    read_condition,
    with_overrides,
)
from perdure.core.approvals.gates import RULE_MUTATING

BEFORE, AFTER = RuleTrigger.BEFORE_TOOL_CALL, RuleTrigger.AFTER_TOOL_CALL
RESULT: JsonValue = {"feet": 330, "ok": True, "rows": [{"n": 1.5}], "none": None}
DONE: dict[str, JsonValue] = {"status": "success", "result": RESULT}
CALL = Subject("assemble", "package.assemble", DONE, {"iteration": 3, "tokens_used": "many"})


def rule(rule_id: str = "a:r", **fields: Any) -> Rule:
    return Rule.model_validate({"id": rule_id, "on": AFTER, "do": RuleAction.REQUIRE_HITL, **fields})


@pytest.mark.parametrize(("when", "holds"), [
    ({}, True),
    *(({"tool": tool}, True) for tool in ("assemble", ["other", "assemble"])),
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
    ({"tool": "assemble", "capability": "package.*"}, True),
    ({"tool": "assemble", "capability": "create_*"}, False),
])  # fmt: skip
def test_a_rule_matches_if_all_its_conditions_hold(when: dict[str, Any], holds: bool) -> None:
    fires = matching_rules([rule(when=when)], AFTER, CALL)
    assert [(each.rule_id, each.unreadable) for each in fires] == ([("a:r", ())] if holds else [])


@pytest.mark.parametrize(("when", "place"), [
    ({"tols": "x"}, "tols"),
    *(({"tool": tool}, "tool") for tool in [7, [], "a b"]),
    *(({"capability": name}, "capability") for name in ("[ab]", ["package.*", None])),
    ({"result": "success"}, "result"),
    ({"result": {"path": "status", "like": "s"}}, "result.like"),
    ({"result": {"path": "status"}}, "result"),
    ({"result": {"equals": 1}}, "result.path"),
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


overriding = st.dictionaries(st.sampled_from(["a:1", "a:2"]), st.text())


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
