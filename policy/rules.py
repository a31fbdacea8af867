"""Which rules fire at a tool call, and which of them decides. Rules only ever stop; none lets anything pass.

Invariants:
- All conditions of a rule must hold. One that cannot be read counts as held, and the fire says so: fail closed. A rule
  whose other condition clearly does not hold stays silent, for all must hold.
- An unknown trigger is asked before each call, an unknown action asks for a person.
- A tenant makes a rule stricter, never looser.
- Fires come in one order, whatever the order of the rules: the platform's, the app's, the skills'.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from contracts.skills import Rule, RuleAction, RuleTrigger
from policy.conditions import Subject, Unreadable, read_condition

_TRIGGERS = {trigger.value: trigger for trigger in RuleTrigger}
_ACTIONS = {action.value: action for action in RuleAction}


@dataclass(frozen=True, slots=True)
class Fire:
    """A rule that fired, with where it comes from (S0-69)."""

    rule_id: str
    trigger: RuleTrigger
    tool: str
    action: RuleAction
    checkpoint: str = ""
    message: str = ""
    app: str = ""
    skill_id: str = ""
    unreadable: tuple[str, ...] = ()
    """Why it fired without all of it being read."""

    def told(self) -> dict[str, JsonValue]:
        """The fire as the data of an event, what is empty left out."""
        told: dict[str, JsonValue] = {
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
        return {name: value for name, value in told.items() if value}


def fire(rules: Iterable[Rule], trigger: RuleTrigger, subject: Subject) -> tuple[Fire, ...]:
    """Every rule that fires, in order; all of them go on record, `deciding` says which counts."""
    fires = (_fired(rule, trigger, subject) for rule in sorted(rules, key=_rank))
    return tuple(each for each in fires if each is not None)


def deciding(fires: Iterable[Fire]) -> Fire | None:
    """The fire that decides: the first that aborts, else the first that names a checkpoint, else the first."""
    ranked = sorted(fires, key=lambda each: (each.action is not RuleAction.ABORT, not each.checkpoint))
    return ranked[0] if ranked else None


def override_fault(rule: Rule | None, do: str) -> str | None:
    """Why a tenant may not give `rule` the action `do`; None where it may."""
    if rule is None:
        return "there is no such rule"
    if do == rule.do or do == RuleAction.ABORT:
        return None
    return f"a rule may be made stricter, never looser: it is {rule.do}, and a tenant may make it {RuleAction.ABORT}"


def with_overrides(rules: Iterable[Rule], overrides: Mapping[str, str]) -> tuple[Rule, ...]:
    """`rules` as a tenant has them; `overrides` are actions by rule id, and one that is not allowed changes nothing."""
    return tuple(
        rule.model_copy(update={"do": overrides[rule.id]})
        if rule.id in overrides and override_fault(rule, overrides[rule.id]) is None
        else rule
        for rule in rules
    )


def _rank(rule: Rule) -> tuple[bool, bool, str, str, str]:
    return (bool(rule.app or rule.skill_id), bool(rule.skill_id), rule.app, rule.skill_id, rule.id)


def _fired(rule: Rule, trigger: RuleTrigger, subject: Subject) -> Fire | None:
    unreadable = []
    if rule.on != trigger:
        if rule.on in _TRIGGERS or trigger is not RuleTrigger.BEFORE_TOOL_CALL:
            return None
        unreadable.append(f"unknown trigger {rule.on!r}")
    for name, value in sorted(rule.when.items()):
        try:
            if not read_condition(name, value)(subject):
                return None
        except Unreadable as fault:
            unreadable.append(f"{'.'.join((name, *fault.place))}: {fault.why}")
    if rule.do not in _ACTIONS:
        unreadable.append(f"unknown action {rule.do!r}")
    return Fire(
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
