"""Rules of the gate: which calls of a round need approval, and which of them can start.

An unknown tool needs approval, and an unreadable verdict releases no call. All gates of a round open before any of its
calls run. After that, each check returns the calls that can start: those whose own request is decided, whatever the
state of the other calls. No call starts twice, and the order of the round is kept.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from pydantic import JsonValue

from perdure.contracts.agents import PlanCard, ToolCard, TurnPlan
from perdure.contracts.approvals import GatedCall, PauseKind, RequestKind, RequestRef, Verdict, VerdictState
from perdure.contracts.calls import EffectClass
from perdure.contracts.ids import effect_key
from perdure.contracts.messages import CallRef
from perdure.contracts.skills import RuleAction, RuleTrigger

RULE_MUTATING = "platform:hitl_on_mutating_capability"
"""The platform's rule for every call that can change something."""
RULE_UNKNOWN = "platform:hitl_on_unknown_tool"
RULE_OUTCOME_UNKNOWN = "platform:settle_unknown_outcome"
RULE_LIMIT_SPENT = "platform:raise_spent_limit"
RULE_FORCED_CHECKPOINT = "platform:checkpoint_forced_by_request"
MAX_REFUSAL_CHARACTERS = 32_000
"""Characters about refused rounds in one prompt, roughly 8,000 tokens: no window drops them."""
OPEN_STATES = frozenset({VerdictState.PENDING, VerdictState.UNREADABLE})
ALLOWING_STATES = frozenset({VerdictState.APPROVED, VerdictState.EDITED, VerdictState.SETTLED})
_REFUSALS = {
    VerdictState.REJECTED: "was rejected",
    VerdictState.RESPONDED: "was answered instead of run",
    VerdictState.EXPIRED: "was not decided in time and counts as denied",
    VerdictState.CANCELLED: "was cancelled",
    VerdictState.WITHDRAWN: "was withdrawn",
}
EXEMPTIBLE_TOOLS = ("memory_patch", "memory_propose_promotion")
"""Both write only what their user is allowed to write, in the user's own scope, or request an admin's approval."""
RULE_EXEMPTED = "tenant:approval_waived"
"""The rule that is recorded in place of the rule that matched."""
_KINDS = {RequestKind.CLARIFICATION: PauseKind.CLARIFICATION, RequestKind.CLIENT_RUN: PauseKind.CLIENT_RUN}


def rule_for(plan: TurnPlan, call: CallRef) -> str | None:
    """Returns the rule that gates `call`, or None if it can run at once."""
    card = plan.card(call.tool)
    if card is None:
        return RULE_UNKNOWN
    return RULE_MUTATING if requires_approval(card, plan.waived) else None


def gate_round(plan: TurnPlan, calls: Sequence[CallRef]) -> tuple[GatedCall, ...]:
    """Returns the calls of a round that need approval. All are checked before any of them runs."""
    gated = []
    for call in calls:
        rule = rule_for(plan, call)
        if rule is not None:
            gated.append(GatedCall(call_id=call.call_id, tool=call.tool, rule=rule))
    return tuple(gated)


def tool_needs_approval(effect: EffectClass, author_says: bool | None) -> bool:
    """Returns whether a tool is gated: as its author states, otherwise whenever it can change something."""
    return effect is not EffectClass.READ if author_says is None else author_says


def effect_request(turn_id: str, call_id: str, tool: str) -> RequestRef:
    """Builds the request with which a person settles the outcome of a call."""
    return RequestRef(request_id=effect_key(turn_id, call_id), kind=RequestKind.EFFECT, call_id=call_id, tool=tool)


def open_requests(requests: Sequence[RequestRef], verdicts: Sequence[Verdict]) -> tuple[RequestRef, ...]:
    """Returns the requests that are undecided or unreadable.

    If there is not exactly one verdict for each request, all requests count as open.
    """
    if sorted(each.request_id for each in requests) != sorted(each.request_id for each in verdicts):
        return tuple(requests)
    still = {verdict.request_id for verdict in verdicts if verdict.state in OPEN_STATES}
    return tuple(request for request in requests if request.request_id in still)


def startable_calls(
    calls: Sequence[str],
    requests: Sequence[RequestRef],
    verdicts: Sequence[Verdict],
    *,
    begun: Collection[str] = (),
    ungated_first: bool = False,
) -> tuple[str, ...]:
    """Returns the calls of a gated round that can start now, in the order of the round: those without an open request.

    A denied call starts, too; the ledger answers it with its denial. `begun` are the calls that have already started.

    No call starts until a verdict allows a call of the round. A round that is denied as a whole therefore leaves no
    trace. With `ungated_first`, ungated calls run at once, and each gated call depends only on its own verdict.
    """
    open_now = open_requests(requests, verdicts)
    held = {request.call_id for request in open_now}
    decided = {request.request_id for request in requests} - {request.request_id for request in open_now}
    allowed = any(each.request_id in decided and each.state in ALLOWING_STATES for each in verdicts)
    may_start = ungated_first or bool(begun) or allowed
    return tuple(call for call in calls if may_start and call not in begun and call not in held)


def round_is_decided(verdicts: Sequence[Verdict], request_count: int) -> bool:
    """Returns whether a pause that ends only as a whole can end: one readable, decided verdict for each request."""
    return request_count > 0 and len(verdicts) == request_count and all(v.state not in OPEN_STATES for v in verdicts)


def round_is_refused(verdicts: Sequence[Verdict]) -> bool:
    """Returns whether no requested call can run; the model then only acknowledges."""
    return all(verdict.state not in ALLOWING_STATES for verdict in verdicts)


def refusal_text(verdict: Verdict) -> str:
    """Returns what the model reads about a call that a verdict refused."""
    by = f" by {verdict.decided_by}" if verdict.decided_by else ""
    why = f": {verdict.comment}" if verdict.comment else ""
    return (
        f"The call to {verdict.tool} {_REFUSALS.get(verdict.state, 'was denied')}{by}{why}\n"
        "It has not run. Tell the user so, with the reason, and do not call it again unless they ask."
    )


def refusal_texts(rounds: Mapping[int, Sequence[Verdict]]) -> dict[int, str]:
    """Returns what the model reads about refused rounds, by step.

    All texts together have about MAX_REFUSAL_CHARACTERS. The newest rounds keep their reasons, which are cut evenly if
    one round alone is too long. Older rounds are only named.
    """
    texts: dict[int, str] = {}
    left = MAX_REFUSAL_CHARACTERS
    for step in sorted(rounds, reverse=True):
        verdicts = rounds[step]
        text = "\n".join(map(refusal_text, verdicts))
        if len(text) > left and not texts:
            most = MAX_REFUSAL_CHARACTERS // len(verdicts)
            text = "\n".join(
                refusal_text(each.model_copy(update={"comment": each.comment[:most]})) for each in verdicts
            )
        elif len(text) > left:
            text, left = f"An earlier round was refused: {len(verdicts)} of its calls have not run.", 0
        texts[step] = text
        left = max(left - len(text), 0)
    return texts


def is_exemptible(name: str, effect: EffectClass) -> bool:
    """Returns whether a tenant can exempt this tool from approval. A server's tool is never `local`."""
    return name in EXEMPTIBLE_TOOLS and effect is EffectClass.LOCAL


def exempted_tools(cards: Iterable[ToolCard], exempt_tools: Collection[str]) -> tuple[str, ...]:
    """Returns the tools among these cards that `exempt_tools` exempt from their own approval.

    Only two of the engine's own memory tools can run without approval. Rules can only stop calls
    (perdure/core/agents/rule_matching.py). An exemption is the only way in which a tenant lets a call pass, so it is
    separate from them.

    Invariants:
    - Only the engine defines these tools, by name and effect class. Tools of apps and servers are excluded.
    - An exemption replaces only the approval that the tool's own card requires. Rules of the platform, an app or a
      skill still require theirs, and an approval that was requested counts as usual.
    - A turn reads the exemptions at its start (perdure/store/turns/context.py). Its calls are checked against those.
    """
    return tuple(
        card.name
        for card in cards
        if card.needs_approval and card.name in exempt_tools and is_exemptible(card.name, card.effect)
    )


def requires_approval(card: ToolCard | PlanCard, exempt_tools: Collection[str]) -> bool:
    """Returns whether the card itself requires approval in a turn with these exemptions."""
    return card.needs_approval and not (card.name in exempt_tools and is_exemptible(card.name, card.effect))


def exemption_fault(tool: str) -> str | None:
    """Returns why a tenant cannot exempt `tool` from approval, or None."""
    if tool in EXEMPTIBLE_TOOLS:
        return None
    return f"Only these tools can be exempt from approval: {', '.join(EXEMPTIBLE_TOOLS)}"


def exemption_event(tool: str) -> dict[str, JsonValue]:
    """Returns the event data of an exempt call, in the form of a rule event."""
    return {
        "rule_id": RULE_EXEMPTED,
        "trigger": RuleTrigger.BEFORE_TOOL_CALL.value,
        "tool": tool,
        "action": "allow",
        "message": "the tenant's policy does not require an approval",
    }


def platform_rule_event(
    gated: GatedCall, card: ToolCard | None, exempt_tools: Collection[str]
) -> dict[str, JsonValue] | None:
    """Returns the event data of the platform's rule that gates a call, in the form of a rule event, or None if no such
    rule fired. The rules of apps and skills are recorded when they are checked."""
    if gated.kind is not RequestKind.APPROVAL:
        return None
    rule = RULE_UNKNOWN if card is None else RULE_MUTATING if requires_approval(card, exempt_tools) else ""
    if not rule:
        return None
    trigger = RuleTrigger.BEFORE_TOOL_CALL.value
    return {"rule_id": rule, "trigger": trigger, "tool": gated.tool, "action": RuleAction.REQUIRE_HITL.value}


def pause_kind(requests: Sequence[RequestRef]) -> PauseKind:
    """Returns the kind of a pause for these requests, which selects the entry of the graph. All requests of a pause are
    of one kind."""
    return next((_KINDS[request.kind] for request in requests if request.kind in _KINDS), PauseKind.APPROVAL)
