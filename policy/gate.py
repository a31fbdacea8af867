"""Which calls of a round need a person first (S0-52, S0-59), and which of them may start after a look at the records.
Unknown means yes, and what cannot be read frees nothing.

All gates of a round are opened before anything of it runs. From then on each look says what may start: a call whose
own request is decided, however its siblings stand (S2-38). Nothing is started twice, and order is the round's own.
"""

from collections.abc import Collection, Sequence

from contracts.agents import EffectClass, TurnPlan
from contracts.ids import effect_key
from contracts.messages import CallRef
from contracts.people import GatedCall, RequestKind, RequestRef, Verdict, VerdictState
from policy.waivers import asks_by_itself

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
    return RULE_MUTATING if asks_by_itself(card, plan.waived) else None


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


def effect_request(turn_id: str, call_id: str, tool: str) -> RequestRef:
    """The request by which a person says what became of a call."""
    return RequestRef(request_id=effect_key(turn_id, call_id), kind=RequestKind.EFFECT, call_id=call_id, tool=tool)


def open_requests(requests: Sequence[RequestRef], verdicts: Sequence[Verdict]) -> tuple[RequestRef, ...]:
    """The requests that nobody has decided on, as far as can be read (S0-36).

    An answer that is not one verdict for each request is none: all are open.
    """
    if sorted(each.request_id for each in requests) != sorted(each.request_id for each in verdicts):
        return tuple(requests)
    still = {verdict.request_id for verdict in verdicts if verdict.state in OPEN_STATES}
    return tuple(request for request in requests if request.request_id in still)


def startable(
    calls: Sequence[str],
    requests: Sequence[RequestRef],
    verdicts: Sequence[Verdict],
    *,
    begun: Collection[str] = (),
    ungated_first: bool = False,
) -> tuple[str, ...]:
    """The calls of a gated round that may start now, in the round's order: those that wait for no open request.

    A call that was refused starts too: the ledger answers it with its denial. `begun` have started before. Nothing
    starts before a verdict has freed the round by allowing a call of it (S0-56), so that a round that is refused whole
    leaves no trace (S0-34); with `ungated_first` no call waits for that: those that need nobody run at once (S2-36),
    each of the others goes by its own verdict (S2-37).
    """
    waiting = open_requests(requests, verdicts)
    held = {request.call_id for request in waiting}
    decided = {request.request_id for request in requests} - {request.request_id for request in waiting}
    allowed = any(each.request_id in decided and each.state in ALLOWING for each in verdicts)
    freed = ungated_first or bool(begun) or allowed
    return tuple(call for call in calls if freed and call not in begun and call not in held)


def round_is_decided(verdicts: Sequence[Verdict], asked: int) -> bool:
    """Whether a pause that ends only as a whole may end: a verdict for each request, none pending, none unreadable."""
    return asked > 0 and len(verdicts) == asked and all(v.state not in OPEN_STATES for v in verdicts)


def round_is_refused(verdicts: Sequence[Verdict]) -> bool:
    """Whether nothing that was asked for may run: the model only acknowledges (S0-34)."""
    return all(verdict.state not in ALLOWING for verdict in verdicts)
