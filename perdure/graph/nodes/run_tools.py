"""tool_node: gates and runs a round of tool calls.

It gates the whole round before any call runs, then runs the decided calls. When all calls are settled, it applies the
rules to their outcomes.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue

from perdure.contracts.agents import TurnPlan
from perdure.contracts.approvals import GatedCall, RequestKind, RequestRef
from perdure.contracts.calls import CallState, ToolCallRequest, ToolOutcome
from perdure.contracts.errors import Problem
from perdure.contracts.events import TOOLS_PENDING
from perdure.contracts.messages import CallRef, MessageRef, Patch, Role
from perdure.core.agents.rule_matching import Ran, Ruled, after_round, before_round, rule_paths
from perdure.core.agents.rules import COUNTERS, RuleMatch
from perdure.core.agents.toolsets import LOAD_TOOLSET, is_of_memory
from perdure.core.approvals.gates import RULE_MUTATING, RULE_OUTCOME_UNKNOWN, gate_round, rule_for
from perdure.core.calls.ledger import SETTLED
from perdure.core.memory.facts import joined
from perdure.graph.nodes.call_model import ended_by
from perdure.graph.nodes.fields import (
    TOOL_WRITABLE,
    calls_of,
    error_of,
    messages_of,
    number_of,
    outcomes_of,
    plan_of,
    requests_of,
)
from perdure.graph.nodes.pause import at_checkpoint, record_exemptions, record_matches, stripped
from perdure.graph.ports import Ports
from perdure.graph.spec import State


@dataclass(frozen=True, slots=True)
class OpenRound:
    """The calls of a round, with the state of each."""

    calls: tuple[CallRef, ...]
    """All calls, in their order."""
    requests: tuple[RequestRef, ...]
    """The requests for which the pause waited; empty for a new round."""
    waiting: Mapping[str, RequestRef]
    """The pending request of each call that cannot start yet."""
    done: Mapping[str, ToolOutcome]
    """The outcome of each call that was settled before the pause."""

    @property
    def without_request(self) -> list[CallRef]:
        """The calls that must run and have no request."""
        requested = {request.call_id for request in self.requests}
        return [call for call in self.calls if not call.settled and call.call_id not in requested | self.done.keys()]

    @property
    def to_run(self) -> list[CallRef]:
        """The calls without an answer, including those that wait."""
        return [call for call in self.calls if not call.answer_id and call.call_id not in self.done]

    @property
    def reviewed(self) -> set[str]:
        """The calls that a reviewer has made again at a checkpoint."""
        return {request.call_id for request in self.requests if request.kind is RequestKind.CHECKPOINT}


def round_of(state: State) -> OpenRound:
    """Returns the round that a state is about to run.

    After a verdict, the state names only the calls that can start. The pause's round has all of them.
    """
    calls = tuple(calls_of(state))
    requests = tuple(requests_of(state, "pending_mutation"))
    found = OpenRound(calls, requests, {}, outcomes_of(state) if requests else {})
    if not requests or found.reviewed:
        return found
    start = {call.call_id for call in calls}
    waiting = {request.call_id: request for request in requests if request.call_id not in start}
    return OpenRound(MessageRef.model_validate(state["pending_round"]).calls, requests, waiting, found.done)


def pending_approvals(plan: TurnPlan, requests: Sequence[RequestRef]) -> list[GatedCall]:
    """Returns the pending approvals, to be opened again. That changes nothing of their records, which keep the rule
    that fired."""
    return [
        GatedCall(call_id=each.call_id, tool=each.tool, rule=_rule(plan, each))
        for each in requests
        if each.kind is RequestKind.APPROVAL
    ]


def to_settle(
    calls: Sequence[CallRef], requests: Sequence[RequestRef], outcomes: Mapping[str, ToolOutcome]
) -> list[GatedCall]:
    """Returns the calls whose outcome is unknown, from this run and from earlier ones."""
    open_effects = {each.call_id for each in requests if each.kind is RequestKind.EFFECT}
    return [
        GatedCall(call_id=call.call_id, tool=call.tool, rule=RULE_OUTCOME_UNKNOWN)
        for call in calls
        if call.call_id in open_effects
        or (call.call_id in outcomes and outcomes[call.call_id].state is CallState.OUTCOME_UNKNOWN)
    ]


def _rule(plan: TurnPlan, request: RequestRef) -> str:
    return rule_for(plan, CallRef(call_id=request.call_id, tool=request.tool, digest="")) or RULE_MUTATING


@dataclass(frozen=True, slots=True)
class Round:
    """A settled round."""

    patch: Patch
    ran: tuple[Ran, ...]
    """The calls that were done, for the rules."""


def settled(
    state: State,
    plan: TurnPlan,
    calls: Sequence[CallRef],
    outcomes: Sequence[ToolOutcome],
    reviewed: Collection[str],
) -> Round:
    """Returns the round with answers as messages, updates as fields, and one more iteration.

    `reviewed` calls are a reviewer's edits of calls that rules had selected. A reviewer has handled them, so no rule
    applies to them again.
    """
    answers = [outcome.message for outcome in outcomes if outcome.message is not None]
    iteration = number_of(state, "iteration") + 1
    patch: Patch = {
        "messages": [message.model_dump(mode="json") for message in [*messages_of(state), *answers]],
        "pending_tool_calls": [],
        "pending_mutation": None,
        "pending_round": None,
        "settled_calls": [],
        "hitl_required": False,
        "hitl_approval_id": None,
        "hitl_reviewer_id": None,
        "iteration": iteration,
    }
    ran = []
    for call, outcome in zip(calls, outcomes, strict=True):
        card = plan.card(call.tool)
        # A tool can write only fields that it asked to read and that tools can write. So it never writes a budget or a
        # status.
        writable = TOOL_WRITABLE.intersection(card.wants_state) if card else ()
        for name, value in outcome.patch.items():
            if name in writable:
                patch[name] = _merge_field(state[name], patch.get(name, state[name]), value)
        if outcome.state is CallState.DONE and call.call_id not in reviewed:
            counters = {name: patch.get(name, state[name]) for name in COUNTERS}
            ran.append(Ran(call, outcome.facts, counters))
    return Round(patch, tuple(ran))


def _merge_field(before: JsonValue, now: JsonValue, after: JsonValue) -> JsonValue:
    """Merges a field that several calls of a round have changed, from its value before the round.

    Each call adds its own difference to a counter; 0 resets it. In lists, the entries of earlier calls remain.
    """
    if isinstance(before, list) and isinstance(now, list) and isinstance(after, list):
        return joined(before, now, after)
    counts = [each for each in (before, now, after) if isinstance(each, int) and not isinstance(each, bool)]
    if len(counts) < 3 or after == 0:
        return after
    return counts[1] + counts[2] - counts[0]


def over_limit(state: State) -> Patch:
    """Returns the end of a turn that has made all its rounds; empty if it can make another."""
    iteration, most = number_of(state, "iteration"), number_of(state, "max_iterations")
    if iteration < most:
        return {}
    over = Problem(
        code="iteration_limit",
        message=f"the turn made {iteration} rounds of tool calls, its limit; raise limits.max_iterations",
    )
    return {"error": over.model_dump(mode="json"), "status": "limited"}


def ended(problem: Problem) -> Patch:
    """Returns the patch with which a problem ends the run."""
    return {"error": problem.model_dump(mode="json"), "status": ended_by(problem), "pending_tool_calls": []}


@dataclass(frozen=True, slots=True)
class RunTools:
    """A node that runs the pending calls, or pauses until reviewers have decided on them."""

    ungated_first: bool = False
    """True if calls without a request run as soon as the requests of their round are open. Otherwise, nothing runs
    before the first call is allowed. Then they run in parallel with that call, because the round is certain to be
    rebuilt."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Starts each gated call when its own request is decided. The ledger still checks its approval.

        The model is called when all calls are settled. Until then, no part of the round remains in the messages.
        """
        if error_of(state) is not None:
            return {"pending_tool_calls": []}
        plan, found = plan_of(state), round_of(state)
        if found.requests:
            ruled = Ruled(gated=gate_round(plan, found.without_request))
        else:
            ruled = before_round(plan, found.without_request, {name: state[name] for name in COUNTERS})
            if pending := _pending(plan, found.calls, ruled.gated):
                ports.events.emit(TOOLS_PENDING, {"calls": pending})
            record_matches(ports, ruled.fired)
            record_exemptions(ports, ruled.waived)
        if ruled.abort is not None:
            return ended(_aborted(ruled.abort))
        if ruled.gated:
            return self._gated(state, ports, plan, found, ruled.gated)
        asks = [_ask(state, plan, call) for call in found.to_run]
        outcomes = await ports.tools.run(asks, [*found.waiting.values()])
        return await _went_on(state, ports, plan, found, outcomes)

    def _gated(self, state: State, ports: Ports, plan: TurnPlan, found: OpenRound, gated: Sequence[GatedCall]) -> Patch:
        """Opens requests for the gated calls, and pending ones again. No call runs in this step."""
        free = len(found.without_request) > len(gated)
        unknown = to_settle(found.calls, found.requests, {})
        requests = [*pending_approvals(plan, found.requests), *gated]
        return stripped(state, ports, requests, unknown, [*found.done.values()], goes_on=self.ungated_first and free)


async def _went_on(
    state: State, ports: Ports, plan: TurnPlan, found: OpenRound, outcomes: Sequence[ToolOutcome]
) -> Patch:
    """Returns the patch of a round: a pause for its open calls, the end of the run, or all results."""
    new = {outcome.call_id: outcome for outcome in outcomes}
    open_ones = [found.waiting[each.call_id] for each in outcomes if _waits(each)]
    unknown = to_settle(found.calls, open_ones, new)
    problem = next((outcome.problem for outcome in outcomes if outcome.problem is not None), None)
    if unknown or (open_ones and problem is None):
        done = {**found.done, **{each.call_id: each for each in outcomes if each.state in SETTLED}}
        kept = [done[call.call_id] for call in found.calls if call.call_id in done]
        return stripped(state, ports, pending_approvals(plan, open_ones), unknown, kept)
    if problem is not None:
        return ended(problem)
    missing = [call for call in found.calls if call.call_id in found.done and found.done[call.call_id].message is None]
    if missing:  # the pause could not carry these outcomes; the ledger returns its stored results
        stored = await ports.tools.run([_ask(state, plan, call) for call in missing])
        rest = {call_id: each for call_id, each in found.done.items() if each.message is not None}
        return await _went_on(state, ports, plan, replace(found, done=rest), [*outcomes, *stored])
    done = {**found.done, **new}
    every = [_refused(call) if call.answer_id else done[call.call_id] for call in found.calls]
    return _looked_at(state, ports, plan, settled(state, plan, found.calls, every, found.reviewed))


def _waits(outcome: ToolOutcome) -> bool:
    return outcome.state is CallState.PLANNED and outcome.problem is None


def _pending(plan: TurnPlan, calls: Sequence[CallRef], gated: Sequence[GatedCall]) -> list[JsonValue]:
    """Returns the calls that the event lists. Calls of the engine itself are not listed."""
    needing = {call.call_id for call in gated}
    listed = [call for call in calls if call.tool != LOAD_TOOLSET and not _is_memory(plan, call)]
    return [
        {"call_id": call.call_id, "tool": call.tool, "requires_approval": call.call_id in needing} for call in listed
    ]


def _is_memory(plan: TurnPlan, call: CallRef) -> bool:
    card = plan.card(call.tool)
    return card is not None and is_of_memory(card)


def _ask(state: State, plan: TurnPlan, call: CallRef) -> ToolCallRequest:
    card = plan.card(call.tool)
    if card is None:
        return ToolCallRequest(call_id=call.call_id, tool=call.tool)
    return ToolCallRequest(
        call_id=call.call_id,
        tool=call.tool,
        timeout_seconds=card.timeout_seconds,
        state={name: state[name] for name in card.wants_state if name in state},
        paths=rule_paths(plan, call.tool),
    )


def _refused(call: CallRef) -> ToolOutcome:
    """Returns the outcome of a call that was rejected when it was planned. It needs no activity."""
    answer = MessageRef(id=call.answer_id, role=Role.TOOL, call_id=call.call_id)
    return ToolOutcome(call_id=call.call_id, state=CallState.FAILED, message=answer)


def _looked_at(state: State, ports: Ports, plan: TurnPlan, done: Round) -> Patch:
    """Returns the round's patch with the effect of the rules: the end of the run, a checkpoint, or nothing. A pause has
    priority over the limit."""
    ruled = after_round(plan, done.ran)
    record_matches(ports, ruled.fired)
    after = {**state, **done.patch}
    if ruled.abort is not None:
        return done.patch | ended(_aborted(ruled.abort))
    if ruled.gated:
        return done.patch | at_checkpoint(after, ports, ruled.gated)
    return done.patch | over_limit(after)


def _aborted(fired: RuleMatch) -> Problem:
    message = fired.message or f"the rule {fired.rule_id} ends the turn at a call to {fired.tool}"
    return Problem(code="rule_abort", message=message)
