"""Reads the conditions of a rule, and decides which rules fire at a tool call.

A condition that cannot be read raises, and a rule with such a condition fires.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import isfinite
from operator import ge, le

from pydantic import JsonValue

from perdure.contracts.skills import Rule, RuleAction, RuleTrigger

COUNTERS = ("consecutive_failed_resolves", "iteration", "tokens_used", "cost_microusd")
"""Fields of a turn's state that a rule can compare."""
MAX_FACT_CHARACTERS = 200
"""Maximum length of a text in a result that a rule can check, because the text is stored in the turn's history."""
RESULT_TESTS = ("equals", "one_of", "at_least", "at_most")
_PATH = re.compile(r"[^.\s]{1,100}(\.[^.\s]{1,100}){0,15}\Z")
_GLOB = re.compile(r"[A-Za-z0-9_.:*?-]+\Z")
_TOOL = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")
_TRIGGERS = {trigger.value: trigger for trigger in RuleTrigger}
_ACTIONS = {action.value: action for action in RuleAction}


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


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """A rule that fired, with its origin."""

    rule_id: str
    trigger: RuleTrigger
    tool: str
    action: RuleAction
    checkpoint: str = ""
    message: str = ""
    app: str = ""
    skill_id: str = ""
    unreadable: tuple[str, ...] = ()
    """The parts that could not be read, with the reasons."""

    def event_data(self) -> dict[str, JsonValue]:
        """Returns the match as the data of an event, without empty fields."""
        data: dict[str, JsonValue] = {
            "rule_id": self.rule_id,
            "trigger": self.trigger.value,
            "tool": self.tool,
            "action": self.action.value,
            "checkpoint": self.checkpoint,
            "message": self.message,
            "app": self.app,
            "skill_id": self.skill_id,
            "unreadable": [*self.unreadable],
        }
        return {name: value for name, value in data.items() if value}


def matching_rules(rules: Iterable[Rule], trigger: RuleTrigger, subject: Subject) -> tuple[RuleMatch, ...]:
    """Returns every rule that fires, in order. All of them are recorded; `deciding_match` selects the one that counts.

    Rules only stop calls; no rule allows one.

    Invariants:
    - All conditions of a rule must hold. A condition that cannot be read counts as held and is listed in the match
      (fail closed). If another condition clearly does not hold, the rule does not fire.
    - A rule with an unknown trigger is checked before each call; an unknown action requires an approval.
    - A tenant can make a rule stricter, never looser.
    - The order of the matches does not depend on the order of the rules: the platform's, the app's, the skills'.
    """
    matches = (_match_rule(rule, trigger, subject) for rule in sorted(rules, key=_rank_rule))
    return tuple(each for each in matches if each is not None)


def deciding_match(matches: Iterable[RuleMatch]) -> RuleMatch | None:
    """Returns the match that decides: the first that aborts, else the first that names a checkpoint, else the first."""
    ranked = sorted(matches, key=lambda each: (each.action is not RuleAction.ABORT, not each.checkpoint))
    return ranked[0] if ranked else None


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


def _rank_rule(rule: Rule) -> tuple[bool, bool, str, str, str]:
    return (bool(rule.app or rule.skill_id), bool(rule.skill_id), rule.app, rule.skill_id, rule.id)


def _match_rule(rule: Rule, trigger: RuleTrigger, subject: Subject) -> RuleMatch | None:
    unreadable = []
    if rule.on != trigger:
        if rule.on in _TRIGGERS or trigger is not RuleTrigger.BEFORE_TOOL_CALL:
            return None
        unreadable.append(f"unknown trigger {rule.on!r}")
    for name, value in sorted(rule.when.items()):
        try:
            if not read_condition(name, value)(subject):
                return None
        except InvalidCondition as fault:
            unreadable.append(f"{'.'.join((name, *fault.place))}: {fault.why}")
    if rule.do not in _ACTIONS:
        unreadable.append(f"unknown action {rule.do!r}")
    return RuleMatch(
        rule_id=rule.id,
        trigger=trigger,
        tool=subject.tool,
        action=_ACTIONS.get(rule.do, RuleAction.REQUIRE_HITL),
        checkpoint=rule.checkpoint,
        message=rule.message,
        app=rule.app,
        skill_id=rule.skill_id,
        unreadable=tuple(unreadable),
    )
