"""Applies the rules of a turn to a round of calls, before any of them runs and after their outcomes are known.

Before the round, a rule gates a call in addition to the call's effect class (perdure/core/approvals/gates.py). After
the round, rules are checked for the calls that ran and returned a result. Calls that failed or were denied have no
result to check. All rules that fire are recorded; one of them decides.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from perdure.contracts.agents import TurnPlan
from perdure.contracts.approvals import GatedCall, RequestKind
from perdure.contracts.ids import checkpoint_id
from perdure.contracts.messages import CallRef
from perdure.contracts.skills import Rule, RuleAction, RuleTrigger
from perdure.core.agents.rules import InvalidCondition, Subject, read_condition
from perdure.core.approvals.gates import gate_round, requires_approval

_TRIGGERS = {trigger.value: trigger for trigger in RuleTrigger}
_ACTIONS = {action.value: action for action in RuleAction}


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


@dataclass(frozen=True, slots=True)
class MatchedRules:
    """A rule that fired at a call."""

    call_id: str
    match: RuleMatch


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A call that answered."""

    call: CallRef
    facts: Mapping[str, JsonValue]
    """Values of its result by path: those that the plan's rules check."""
    counters: Mapping[str, JsonValue]
    """The turn's counters after the call."""


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The result of applying the rules."""

    matched: tuple[MatchedRules, ...] = ()
    """All rules that fired, for the record."""
    gated: tuple[GatedCall, ...] = ()
    """The calls and checkpoints that need an approval."""
    exempted: tuple[CallRef, ...] = ()
    """The calls that need no approval only because the tenant exempts their tools."""
    abort: RuleMatch | None = None
    """The rule that ends the turn."""


def before_round(plan: TurnPlan, calls: Sequence[CallRef], counters: Mapping[str, JsonValue]) -> RuleResult:
    """Returns which of these calls are held, decided for all of them before any runs."""
    matched: list[MatchedRules] = []
    gated = {each.call_id: each for each in gate_round(plan, calls)}
    stopped = {*gated}
    abort: RuleMatch | None = None
    for call in calls:
        matches = matching_rules(plan.rules, RuleTrigger.BEFORE_TOOL_CALL, _subject_of(plan, call, counters))
        matched += [MatchedRules(call.call_id, each) for each in matches]
        deciding = deciding_match(matches)
        if deciding is not None:
            stopped.add(call.call_id)
        if deciding is not None and deciding.action is RuleAction.ABORT:
            abort = abort or deciding
        elif deciding is not None:
            gated[call.call_id] = GatedCall(
                call_id=call.call_id,
                tool=call.tool,
                rule=deciding.rule_id,
                checkpoint=deciding.checkpoint,
                message=deciding.message,
            )
    return RuleResult(
        tuple(matched),
        tuple(gated[call.call_id] for call in calls if call.call_id in gated),
        tuple(call for call in calls if call.call_id not in stopped and _is_exempt(plan, call)),
        abort,
    )


def _is_exempt(plan: TurnPlan, call: CallRef) -> bool:
    card = plan.card(call.tool)
    return card is not None and card.needs_approval and not requires_approval(card, plan.waived)


def after_round(plan: TurnPlan, ran: Sequence[AnsweredCall]) -> RuleResult:
    """Returns the checkpoints that the outcomes of a round open, one for each call that a rule matches.

    A rule whose only condition is a counter applies to the turn, not to a call. It fires once per round.
    """
    matched: list[MatchedRules] = []
    gated: list[GatedCall] = []
    abort: RuleMatch | None = None
    fired_once: set[str] = set()
    for each in ran:
        rules = [rule for rule in plan.rules if rule.id not in fired_once]
        subject = _subject_of(plan, each.call, each.counters, _nest_facts(each.facts))
        matches = matching_rules(rules, RuleTrigger.AFTER_TOOL_CALL, subject)
        matched += [MatchedRules(each.call.call_id, one) for one in matches]
        fired_once |= {rule.id for rule in rules if rule.when.keys() <= {"counter"}} & {one.rule_id for one in matches}
        deciding = deciding_match(matches)
        if deciding is not None and deciding.action is RuleAction.ABORT:
            abort = abort or deciding
        elif deciding is not None:
            gated.append(
                GatedCall(
                    call_id=checkpoint_id(each.call.call_id),
                    tool=each.call.tool,
                    rule=deciding.rule_id,
                    kind=RequestKind.CHECKPOINT,
                    checkpoint=checkpoint_name(deciding),
                    message=deciding.message,
                    go_on_when_unavailable=all(_can_continue(plan, one) for one in matches),
                )
            )
    return RuleResult(tuple(matched), tuple(gated), abort=abort)


def _can_continue(plan: TurnPlan, matched: RuleMatch) -> bool:
    """Returns whether a checkpoint of the rule's skill lets the turn continue if no approval can be requested."""
    skill = next((each for each in plan.skills if each.id == matched.skill_id), None)
    opened = [each for each in skill.checkpoints if each.name == checkpoint_name(matched)] if skill else []
    return any(each.go_on_when_unavailable for each in opened)


def checkpoint_name(matched: RuleMatch) -> str:
    """Returns the name of the checkpoint that a rule opens, or else the last part of the rule's id."""
    return matched.checkpoint or matched.rule_id.rpartition(":")[2]


def _subject_of(plan: TurnPlan, call: CallRef, counters: Mapping[str, JsonValue], result: JsonValue = None) -> Subject:
    card = plan.card(call.tool)
    return Subject(call.tool, card.capability if card else "", result, counters)


def _nest_facts(facts: Mapping[str, JsonValue]) -> JsonValue:
    """Builds the known part of the result: values by path, nested where conditions look for them."""
    result: dict[str, JsonValue] = {}
    for path, value in facts.items():
        *parents, last = path.split(".")
        node = result
        for step in parents:
            child = node.setdefault(step, {})
            node = child if isinstance(child, dict) else {}
        node[last] = value
    return result
