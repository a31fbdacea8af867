"""Applies the rules of a turn to a round of calls, before any of them runs and after their outcomes are known.

Before the round, a rule gates a call in addition to the call's effect class (perdure/core/approvals/gates.py). After
the round, rules are checked for the calls that ran and returned a result. Calls that failed or were denied have no
result to check. All rules that fire are recorded; one of them decides.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from perdure.contracts.agents import PlanCard, ToolCard, TurnPlan
from perdure.contracts.approvals import GatedCall, RequestKind
from perdure.contracts.calls import EffectClass
from perdure.contracts.ids import checkpoint_id
from perdure.contracts.messages import CallRef
from perdure.contracts.skills import Rule, RuleAction, RuleTrigger
from perdure.core.agents.rules import (
    InvalidCondition,
    RuleMatch,
    Subject,
    deciding_match,
    matching_rules,
    read_condition,
)
from perdure.core.approvals.gates import RULE_MUTATING, gate_round, requires_approval

_CARD_CONDITIONS = ("tool", "capability")
"""Conditions that depend only on the card."""


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


RULE_FORCE_CLARIFY = "platform:force_clarify_after_failed_resolves"
MUTATING_CAPABILITIES = ("create_entity", "update_entity", "link_entities", "batch_*")
MAX_FAILED_RESOLVES = 3

# These rules apply to every agent; a tenant can make them stricter (perdure/core/agents/rules.py).
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
    (perdure/core/approvals/gates.py and the rules above). A reason is a possibility: a rule's other conditions are
    checked at the call.
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
