"""Reads rules of an app or a skill strictly, whereas perdure/core/agents/rules.py reads them leniently.

A rule that would always fire because it cannot be read, or that would never fire, is rejected here.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, JsonValue

from perdure.apps.files import AppProblem, Place, YamlFile, did_you_mean, read_form, read_yaml
from perdure.contracts.skills import Rule, RuleAction, RuleTrigger
from perdure.contracts.values import Frozen
from perdure.core.agents.rules import CONDITIONS, COUNTERS, RESULT_TESTS, InvalidCondition, read_condition

_TRIGGERS = tuple(trigger.value for trigger in RuleTrigger)
_ACTIONS = tuple(action.value for action in RuleAction)


class _RuleForm(Frozen):
    id: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")
    on: str
    when: dict[str, JsonValue] = Field(min_length=1)
    do: str
    checkpoint: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class RuleScope:
    """The owner of the rules, and the names that they can use."""

    app: str
    skill_id: str
    """Empty for the app's own rules."""
    tools: Collection[str]
    """Every tool and block of the app and the engine: a rule for any other would never fire."""
    checkpoints: Collection[str] | None = None
    """The skill's checkpoints; None if any name is allowed."""

    def full_id(self, rule_id: str) -> str:
        """Returns the id that a rule has outside its app: `app/skill:rule`, or `app:rule` for a rule of the app
        itself."""
        return f"{self.app}/{self.skill_id}:{rule_id}" if self.skill_id else f"{self.app}:{rule_id}"


def read_rule_files(folder: Path, scope: RuleScope) -> tuple[tuple[Rule, ...], list[AppProblem]]:
    """Returns the app's own rules: the lists in `rules/*.yaml`."""
    rules: dict[str, Rule] = {}
    problems: list[AppProblem] = []
    for path in sorted(path for path in folder.glob("rules/*") if path.suffix in (".yaml", ".yml")):
        file = read_yaml(path)
        if not isinstance(file, YamlFile):
            problems += file
            continue
        file_rules, mistakes = read_rules(file.value, file, (), scope)
        problems += mistakes
        for rule in file_rules:
            if rule.id in rules:
                problems.append(AppProblem(path, None, f"the rule {rule.id} already exists in another file"))
            rules[rule.id] = rule
    return tuple(rules.values()), problems


def read_rules(value: object, file: YamlFile, place: Place, scope: RuleScope) -> tuple[list[Rule], list[AppProblem]]:
    """Returns the valid rules in the list at `place`, and the mistakes in all of them."""
    if not isinstance(value, list):
        return [], [file.problem(place, "must be a list of rules, each with id, on, when and do")]
    rules: list[Rule] = []
    problems: list[AppProblem] = []
    for index, entry in enumerate(value):
        rule_place = (*place, index)
        form, mistakes = read_form(_RuleForm, entry, file, rule_place)
        problems += mistakes
        if isinstance(entry, dict):
            problems += _word_mistakes(entry, file, rule_place)
            problems += _condition_mistakes(entry, file, rule_place, scope)
        if form is None:
            continue
        problems += _checkpoint_mistakes(form, file, rule_place, scope)
        rule_id = scope.full_id(form.id)
        if any(rule.id == rule_id for rule in rules):
            problems.append(file.problem((*rule_place, "id"), f"the rule {form.id} appears twice"))
        rules.append(Rule(**form.model_dump() | {"id": rule_id}, app=scope.app, skill_id=scope.skill_id))
    return rules, problems


def _word_mistakes(rule: dict[str, object], file: YamlFile, place: Place) -> Iterator[AppProblem]:
    for name, kind, known in (("on", "trigger", _TRIGGERS), ("do", "action", _ACTIONS)):
        word = rule.get(name)
        if isinstance(word, str) and word not in known:
            yield file.problem((*place, name), f"unknown {kind} {word!r}{did_you_mean(word, known)}")


def _condition_mistakes(
    rule: dict[str, object], file: YamlFile, place: Place, scope: RuleScope
) -> Iterator[AppProblem]:
    conditions = rule.get("when")
    if not isinstance(conditions, dict):
        return
    for name, value in conditions.items():
        condition_place = (*place, "when", name)
        if name not in CONDITIONS:
            yield file.problem(condition_place, f"unknown condition {name!r}{did_you_mean(name, CONDITIONS)}")
            continue
        try:
            read_condition(name, value)
        except InvalidCondition as fault:
            wrong = value.get(fault.place[0]) if fault.place and isinstance(value, dict) else None
            hint = _hint(name, fault, wrong)
            yield file.problem((*condition_place, *fault.place), f"{'.'.join((name, *fault.place))}: {fault.why}{hint}")
            continue
        if name == "result" and rule.get("on") == RuleTrigger.BEFORE_TOOL_CALL:
            yield file.problem(condition_place, "the call has no result yet; use `on: after_tool_call`")
        if name == "tool":
            for tool in value if isinstance(value, list) else [value]:
                if tool not in scope.tools:
                    yield file.problem(condition_place, f"unknown tool {tool!r}{did_you_mean(tool, scope.tools)}")


def _hint(name: str, fault: InvalidCondition, wrong: object) -> str:
    """Returns suggestions if a condition has an unknown field or an unknown counter."""
    if name == "counter" and fault.place == ("name",) and isinstance(wrong, str):
        return did_you_mean(wrong, COUNTERS)
    if fault.why.startswith("unknown field"):
        known = ("name", "at_least") if name == "counter" else ("path", *RESULT_TESTS)
        return did_you_mean(fault.place[0], known)
    return ""


def _checkpoint_mistakes(form: _RuleForm, file: YamlFile, place: Place, scope: RuleScope) -> Iterator[AppProblem]:
    if not form.checkpoint:
        return
    if form.do == RuleAction.ABORT:
        yield file.problem((*place, "checkpoint"), "a rule that aborts cannot have a checkpoint")
    if scope.checkpoints is not None and form.checkpoint not in scope.checkpoints:
        hint = did_you_mean(form.checkpoint, scope.checkpoints)
        yield file.problem((*place, "checkpoint"), f"{form.checkpoint!r} is not a checkpoint of the skill{hint}")
