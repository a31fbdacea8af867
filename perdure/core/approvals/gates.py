"""Which calls of a round need a person first (S0-52, S0-59), and which of them may start after a look at the records.
Unknown means yes, and what cannot be read frees nothing.

All gates of a round are opened before anything of it runs. From then on each look says what may start: a call whose
own request is decided, however its siblings stand (S2-38). Nothing is started twice, and order is the round's own.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta

from pydantic import JsonValue

from perdure.contracts.agents import PlanCard, ToolCard, TurnPlan
from perdure.contracts.approvals import GatedCall, PauseKind, RequestKind, RequestRef, Verdict, VerdictState
from perdure.contracts.calls import EffectClass
from perdure.contracts.ids import effect_key
from perdure.contracts.messages import CallRef
from perdure.contracts.skills import RuleTrigger

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


# --- What a tenant's policy may let run without a person: two of the engine's own memory tools and nothing else
# (S2-41). Rules only ever stop (perdure/core/agents/rules.py); this is the one thing by which a tenant lets something
# pass, so it stands apart.
#
# Invariants:
# - Only the engine says which tools these are, by name and effect class: no app's tool and no server's is one of them.
# - A waiver stands for the approval that the tool's own card asks for. Whatever else asks for a person (a rule of the
#   platform, of an app or of a skill) asks all the same, and an approval that was asked for counts as ever.
# - A turn takes the waivers as it begins (perdure/store/turns/context.py); its calls are held against what it has
#   taken.

WAIVABLE = ("memory_patch", "memory_propose_promotion")
"""They write what their user may write, in the user's own scope, or ask an administrator."""
RULE_WAIVED = "tenant:approval_waived"
"""What is put on record in place of a rule that fired."""


def is_waivable(name: str, effect: EffectClass) -> bool:
    """Whether a tenant may let this tool run without a person; a server's tool is never `local`."""
    return name in WAIVABLE and effect is EffectClass.LOCAL


def waived_of(cards: Iterable[ToolCard], waivers: Collection[str]) -> tuple[str, ...]:
    """The tools among these whose own approval the tenant's `waivers` take away."""
    return tuple(
        card.name
        for card in cards
        if card.needs_approval and card.name in waivers and is_waivable(card.name, card.effect)
    )


def asks_by_itself(card: ToolCard | PlanCard, waived: Collection[str]) -> bool:
    """Whether the card asks for a person, in a turn that has taken these waivers."""
    return card.needs_approval and not (card.name in waived and is_waivable(card.name, card.effect))


def waiver_fault(tool: str) -> str | None:
    """Why a tenant may not let `tool` run without a person; None where it may."""
    if tool in WAIVABLE:
        return None
    return f"only these may run without an approval that they need: {', '.join(WAIVABLE)}"


def told_of(tool: str) -> dict[str, JsonValue]:
    """A call that is let pass, as the data of the event by which rules are told."""
    return {
        "rule_id": RULE_WAIVED,
        "trigger": RuleTrigger.BEFORE_TOOL_CALL.value,
        "tool": tool,
        "action": "allow",
        "message": "the tenant's policy lets it run without a person",
    }


# --- What a paused turn waits for, and when it looks at its records by itself, without being rung.

MARGIN = timedelta(seconds=1)
"""Beyond a deadline, so that the database's clock has passed it too."""
LONGEST = timedelta(minutes=10)
_KINDS = {RequestKind.CLARIFICATION: PauseKind.CLARIFICATION, RequestKind.CLIENT_RUN: PauseKind.CLIENT_RUN}


def pause_kind(requests: Sequence[RequestRef]) -> PauseKind:
    """What a pause for these waits for, and so where its run enters the graph again; all of a pause are of one."""
    return next((_KINDS[request.kind] for request in requests if request.kind in _KINDS), PauseKind.APPROVAL)


def deadlines_of(requests: Sequence[RequestRef]) -> list[datetime]:
    """When each request is worth a look by itself: where its record last said, else at its expiry."""
    times = [request.look_at or request.expires_at for request in requests]
    return [time for time in times if time is not None]


def next_look(now: datetime, deadlines: Sequence[datetime], looks: int) -> timedelta | None:
    """How long to wait before the next look: until the first deadline; None where there is none.

    A turn that is past its deadline and still undecided (its record cannot be read, the clocks differ) is looked at
    after 1, 2, 4 ... seconds, every ten minutes in the end. `looks` counts the looks in a row that changed nothing.
    """
    if not deadlines:
        return None
    left = min(deadlines) - now + MARGIN
    if left > timedelta(0):
        return left
    return min(LONGEST, timedelta(seconds=2 ** min(looks, 20)))
