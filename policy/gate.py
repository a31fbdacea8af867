"""Which calls of a round need a person first (S0-52, S0-59). Unknown means yes."""

from collections.abc import Sequence

from contracts.agents import EffectClass, TurnPlan
from contracts.messages import CallRef
from contracts.people import GatedCall, Verdict, VerdictState

RULE_MUTATING = "platform:hitl_on_mutating_capability"
"""The platform's rule for every call that may change something."""
RULE_UNKNOWN = "platform:hitl_on_unknown_tool"
RULE_OUTCOME_UNKNOWN = "platform:settle_unknown_outcome"
RULE_LIMIT_SPENT = "platform:raise_spent_limit"
RULE_FORCED_CHECKPOINT = "platform:checkpoint_forced_by_request"


def rule_for(plan: TurnPlan, call: CallRef) -> str | None:
    """The rule that gates `call`, or None where it may run at once."""
    card = plan.card(call.tool)
    if card is None:
        return RULE_UNKNOWN
    return RULE_MUTATING if card.needs_approval else None


def gate_round(plan: TurnPlan, calls: Sequence[CallRef]) -> tuple[GatedCall, ...]:
    """The calls of a round that need an approval, decided for all before any runs (S0-59)."""
    gated = []
    for call in calls:
        rule = rule_for(plan, call)
        if rule is not None:
            gated.append(GatedCall(call_id=call.call_id, tool=call.tool, rule=rule))
    return tuple(gated)


def tool_needs_approval(effect: EffectClass, author_says: bool | None) -> bool:
    """Whether a tool is gated: by its author's word, else whenever it may change something."""
    return effect is not EffectClass.READ if author_says is None else author_says


OPEN_STATES = frozenset({VerdictState.PENDING, VerdictState.UNREADABLE})
ALLOWING = frozenset({VerdictState.APPROVED, VerdictState.EDITED, VerdictState.SETTLED})


def round_is_decided(verdicts: Sequence[Verdict], asked: int) -> bool:
    """Whether a paused round may go on: a verdict for each request, none pending, none unreadable (S0-36)."""
    return asked > 0 and len(verdicts) == asked and all(v.state not in OPEN_STATES for v in verdicts)


def round_is_refused(verdicts: Sequence[Verdict]) -> bool:
    """Whether nothing of the round may run: the model only acknowledges (S0-34)."""
    return all(verdict.state not in ALLOWING for verdict in verdicts)
