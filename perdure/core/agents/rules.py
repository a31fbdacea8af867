"""The rules of tool calls: the conditions that a rule can have, the platform's own rules, a tenant's stricter actions,
and the rules that can apply to an agent.

A condition that cannot be read raises, and a rule with such a condition fires (perdure/core/agents/rule_matching.py).
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import isfinite
from operator import ge, le

from pydantic import JsonValue

from perdure.contracts.agents import PlanCard, ToolCard, TurnPlan
from perdure.contracts.calls import EffectClass
from perdure.contracts.skills import Rule, RuleAction, RuleTrigger
from perdure.core.approvals.gates import RULE_MUTATING, requires_approval

COUNTERS = ("consecutive_failed_resolves", "iteration", "tokens_used", "cost_microusd")
"""Fields of a turn's state that a rule can compare."""
MAX_FACT_CHARACTERS = 200
"""Maximum length of a text in a result that a rule can check, because the text is stored in the turn's history."""
RESULT_TESTS = ("equals", "one_of", "at_least", "at_most")
_PATH = re.compile(r"[^.\s]{1,100}(\.[^.\s]{1,100}){0,15}\Z")
_GLOB = re.compile(r"[A-Za-z0-9_.:*?-]+\Z")
_TOOL = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")
_CARD_CONDITIONS = ("tool", "capability")
"""Conditions that depend only on the card."""
RULE_FORCE_CLARIFY = "platform:force_clarify_after_failed_resolves"
MUTATING_CAPABILITIES = ("create_entity", "update_entity", "link_entities", "batch_*")
MAX_FAILED_RESOLVES = 3
# These rules apply to every agent; a tenant can make them stricter.
PLATFORM_RULES = (
    Rule(
        id=RULE_MUTATING,
        on=RuleTrigger.BEFORE_TOOL_CALL,
        when={"capability": [*MUTATING_CAPABILITIES]},
        do=RuleAction.REQUIRE_HITL,
        message="This call changes entities, so a person decides",
    ),
    Rule(
        id=RULE_FORCE_CLARIFY,
        on=RuleTrigger.AFTER_TOOL_CALL,
        when={"counter": {"name": "consecutive_failed_resolves", "at_least": MAX_FAILED_RESOLVES}},
        do=RuleAction.REQUIRE_HITL,
        message=f"{MAX_FAILED_RESOLVES} names in a row could not be resolved, so a person must choose",
    ),
)
_APPROVAL_REASONS = {
    EffectClass.READ: "the tool's author requires an approval for each call",
    EffectClass.LOCAL: "it changes local data (local)",
    EffectClass.KEYED: "it changes an external system, with an idempotency key (keyed)",
    EffectClass.OPAQUE: "it changes an external system and cannot be repeated safely (opaque)",
}
NO_APPROVAL_FOR_READ = "it changes nothing (read)"
NO_APPROVAL_BY_AUTHOR = "the tool's author does not require an approval"
NO_APPROVAL_BY_TENANT = "the tenant's policy does not require an approval"


class InvalidCondition(Exception):
    """A condition that is invalid here; `place` is the path to the invalid part."""

    def __init__(self, why: str, *place: str) -> None:
        super().__init__(why)
        self.why = why
        self.place = place


@dataclass(frozen=True, slots=True)
class Subject:
    """A tool call, before or after it ran."""

    tool: str
    capability: str = ""
    result: JsonValue = None
    """The tool's result as the model reads it; None before the call."""
    counters: Mapping[str, JsonValue] | None = None
    """The turn's fields of COUNTERS."""


Check = Callable[[Subject], bool]
"""Returns whether a condition holds. Raises: InvalidCondition if the subject does not contain the value."""


def read_condition(name: str, value: JsonValue) -> Check:
    """Returns the check for the condition `name` of a rule.

    Raises: InvalidCondition.
    """
    if name not in _READERS:
        raise InvalidCondition(f"unknown condition {name!r}")
    return _READERS[name](value)


def _tool(value: JsonValue) -> Check:
    names = _read_texts(value, _TOOL, "a tool name or a list of tool names")
    return lambda subject: subject.tool in names


def _capability(value: JsonValue) -> Check:
    globs = _read_texts(value, _GLOB, "a capability pattern with the wildcards * and ?, or a list of them")
    return lambda subject: any(fnmatchcase(subject.capability, glob) for glob in globs)


def _counter(value: JsonValue) -> Check:
    fields = _read_fields(value, ("name", "at_least"))
    name, least = fields.get("name"), _number(fields.get("at_least"), "at_least")
    if not isinstance(name, str) or name not in COUNTERS:
        raise InvalidCondition(f"unknown counter {name!r}", "name")

    def holds(subject: Subject) -> bool:
        counters = subject.counters or {}
        if name not in counters:
            raise InvalidCondition(f"this turn has no counter {name}", "name")
        return _number(counters[name], "name") >= least

    return holds


def _result(value: JsonValue) -> Check:
    fields = _read_fields(value, ("path", *RESULT_TESTS))
    path = fields.pop("path", None)
    if not isinstance(path, str) or not _PATH.match(path):
        raise InvalidCondition("must be names and list indexes separated by dots", "path")
    if len(fields) != 1:
        raise InvalidCondition(f"needs exactly one of {', '.join(RESULT_TESTS)}")
    ((test, expected),) = fields.items()
    if test in ("at_least", "at_most"):
        bound, compare = _number(expected, test), ge if test == "at_least" else le
        return lambda subject: bool(compare(_number(_value_at(subject.result, path), "path"), bound))
    choices = expected if isinstance(expected, list) and test == "one_of" else [expected]
    if (test == "one_of") is not isinstance(expected, list) or not choices or not all(map(_plain, choices)):
        raise InvalidCondition("must be plain values: one for `equals`, a list for `one_of`", test)

    def holds(subject: Subject) -> bool:
        value = _value_at(subject.result, path)
        if not _plain(value):
            raise InvalidCondition("the result has no plain value at this path", "path")
        return any(_same_value(value, choice) for choice in choices)

    return holds


def plain_facts(result: JsonValue, paths: Iterable[str]) -> dict[str, JsonValue]:
    """Returns the plain values of `result` at `paths`. Paths without a plain value, or with a long text, are omitted,
    so that a condition on them is unreadable."""
    facts: dict[str, JsonValue] = {}
    for path in paths:
        try:
            value = _value_at(result, path)
        except InvalidCondition:
            continue
        if _plain(value) and not (isinstance(value, str) and len(value) > MAX_FACT_CHARACTERS):
            facts[path] = value
    return facts


_READERS: Mapping[str, Callable[[JsonValue], Check]] = {
    "tool": _tool,
    "capability": _capability,
    "result": _result,
    "counter": _counter,
}
CONDITIONS = tuple(_READERS)
"""The conditions that a rule can have."""


def _read_texts(value: JsonValue, pattern: re.Pattern[str], expected: str) -> list[str]:
    listed = value if isinstance(value, list) else [value]
    texts = [each for each in listed if isinstance(each, str) and pattern.match(each)]
    if not listed or len(texts) < len(listed):
        raise InvalidCondition(f"must be {expected}")
    return texts


def _read_fields(value: JsonValue, known: tuple[str, ...]) -> dict[str, JsonValue]:
    if not isinstance(value, dict):
        raise InvalidCondition(f"must be an object with the fields: {', '.join(known)}")
    for name in value:
        if name not in known:
            raise InvalidCondition(f"unknown field {name!r}", name)
    return dict(value)


def _number(value: JsonValue, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidCondition("is not a number", place)
    if isinstance(value, float) and not isfinite(value):
        raise InvalidCondition("is not a number", place)
    return value


def _value_at(result: JsonValue, path: str) -> JsonValue:
    value = result
    for step in path.split("."):
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isascii() and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            raise InvalidCondition(f"the result has no {path}", "path")
    return value


def _plain(value: JsonValue) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def _same_value(one: JsonValue, other: JsonValue) -> bool:
    return isinstance(one, bool) is isinstance(other, bool) and one == other


def override_fault(rule: Rule | None, do: str) -> str | None:
    """Returns why a tenant cannot give `rule` the action `do`, or None."""
    if rule is None:
        return "rule not found"
    if do == rule.do or do == RuleAction.ABORT:
        return None
    return (
        f"A rule can only be made stricter: its action is {rule.do}, and a tenant can change it to {RuleAction.ABORT}"
    )


def with_overrides(rules: Iterable[Rule], overrides: Mapping[str, str]) -> tuple[Rule, ...]:
    """Returns `rules` with a tenant's changes. `overrides` are actions by rule id; one that is not allowed has no
    effect."""
    return tuple(
        rule.model_copy(update={"do": overrides[rule.id]})
        if rule.id in overrides and override_fault(rule, overrides[rule.id]) is None
        else rule
        for rule in rules
    )


def rule_paths(plan: TurnPlan, tool: str) -> tuple[str, ...]:
    """Returns the paths in a result of `tool` that the plan's rules check. Only their values reach the graph, not the
    result itself."""
    card = plan.card(tool)
    conditions = [
        rule.when.get("result")
        for rule in plan.rules
        if rule.on == RuleTrigger.AFTER_TOOL_CALL and card is not None and _may_match(rule, card)
    ]
    paths = [condition.get("path") for condition in conditions if isinstance(condition, dict)]
    return tuple(dict.fromkeys(path for path in paths if isinstance(path, str)))


def applicable_rules(rules: Iterable[Rule], cards: Sequence[PlanCard]) -> tuple[Rule, ...]:
    """Returns the rules that can ever fire for an agent with these tools. A condition that cannot be read counts as one
    that can fire."""
    counted = {name for card in cards for name in card.wants_state}
    return tuple(
        rule
        for rule in rules
        if any(_may_match(rule, card) for card in cards) and not _needs_missing_counter(rule, counted)
    )


def _may_match(rule: Rule, card: PlanCard) -> bool:
    subject = Subject(card.name, card.capability)
    return all(_condition_holds(name, rule.when[name], subject) for name in _CARD_CONDITIONS if name in rule.when)


def _needs_missing_counter(rule: Rule, counted: set[str]) -> bool:
    """Returns whether the rule needs a counter that no tool counts. The engine itself counts all others."""
    condition = rule.when.get("counter")
    name = condition.get("name") if isinstance(condition, dict) else None
    if name != "consecutive_failed_resolves" or name in counted:
        return False
    return not _condition_holds("counter", condition, Subject("", counters={name: 0}))


def _condition_holds(name: str, value: JsonValue, subject: Subject) -> bool:
    try:
        return read_condition(name, value)(subject)
    except InvalidCondition:
        return True


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason to hold a call or to end the turn."""

    trigger: str
    """A RuleTrigger: before the call or after its result."""
    action: str
    """A RuleAction."""
    rule: str
    why: str
    conditions: dict[str, JsonValue]
    """The rule's conditions; empty if it applies to every call."""


def reasons_of(card: ToolCard, rules: Iterable[Rule], exempt_tools: Collection[str] = ()) -> tuple[Reason, ...]:
    """Returns every reason, the card's own first. `rules` are the agent's rules with the tenant's changes.
    `exempt_tools` are the tools that the tenant exempts from approval.

    The reasons are for views of an agent; no decision depends on them. They are derived from the code that decides
    (perdure/core/approvals/gates.py and perdure/core/agents/rule_matching.py). A reason is a possibility: a rule's
    other conditions are checked at the call.
    """
    own: tuple[Reason, ...] = ()
    if requires_approval(card, exempt_tools):
        own = (
            Reason(
                RuleTrigger.BEFORE_TOOL_CALL.value, "require_hitl", RULE_MUTATING, _APPROVAL_REASONS[card.effect], {}
            ),
        )
    planned = PlanCard(
        name=card.name,
        effect=card.effect,
        needs_approval=card.needs_approval,
        capability=card.capability,
        wants_state=card.wants_state,
    )
    fitting = [rule for rule in applicable_rules(rules, [planned]) if not _is_covered(rule, own)]
    return (*own, *(Reason(rule.on, rule.do, rule.id, rule.message, rule.when) for rule in fitting))


def why_no_approval(card: ToolCard) -> str:
    """Returns why a tool without its own gate needs no approval."""
    if card.needs_approval:
        return NO_APPROVAL_BY_TENANT
    return NO_APPROVAL_FOR_READ if card.effect is EffectClass.READ else NO_APPROVAL_BY_AUTHOR


def _is_covered(rule: Rule, own: tuple[Reason, ...]) -> bool:
    """Returns whether a reason of the card already covers this rule. The platform's rule for mutating tools repeats the
    card's reason unless a tenant made it stricter."""
    return any(rule.id == each.rule and rule.do == each.action for each in own)
