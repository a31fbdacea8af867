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
from perdure.core.agents.rule_matching import AnsweredCall, RuleMatch, RuleResult, after_round, before_round
from perdure.core.agents.rules import COUNTERS, rule_paths
from perdure.core.agents.skills import LOAD_SKILL
from perdure.core.agents.toolsets import LOAD_TOOLSET, is_memory_tool
from perdure.core.approvals.gates import RULE_MUTATING, RULE_OUTCOME_UNKNOWN, gate_round, rule_for
from perdure.core.calls.ledger import SETTLED
from perdure.core.memory.facts import merge_lists
from perdure.graph.nodes.call_model import end_status
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
from perdure.graph.nodes.pause import pause_at_checkpoint, pause_round, record_exemptions, record_matches
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

    def request_of(self, call_id: str) -> RequestRef:
        """Returns the request of a call that waits."""
        tool = next(call.tool for call in self.calls if call.call_id == call_id)
        own = (request for request in self.requests if request.call_id == call_id)
        return next(own, RequestRef(request_id="", call_id=call_id, tool=tool))

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
    open_round = OpenRound(calls, requests, {}, outcomes_of(state) if requests else {})
    if not requests or open_round.reviewed:
        return open_round
    start = {call.call_id for call in calls}
    waiting = {request.call_id: request for request in requests if request.call_id not in start}
    return OpenRound(MessageRef.model_validate(state["pending_round"]).calls, requests, waiting, open_round.done)


def pending_approvals(plan: TurnPlan, requests: Sequence[RequestRef]) -> list[GatedCall]:
    """Returns the pending approvals, to be opened again. That changes nothing of their records, which keep the rule
    that fired."""
    return [
        GatedCall(call_id=each.call_id, tool=each.tool, rule=_gating_rule(plan, each))
        for each in requests
        if each.kind is RequestKind.APPROVAL
    ]


def calls_to_settle(
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


def _gating_rule(plan: TurnPlan, request: RequestRef) -> str:
    return rule_for(plan, CallRef(call_id=request.call_id, tool=request.tool, digest="")) or RULE_MUTATING


def calls_to_check(plan: TurnPlan, gated: Sequence[GatedCall]) -> list[str]:
    """Returns the ids of the gated calls whose arguments their tools' own types may refuse."""
    cards = {each.call_id: plan.card(each.tool) for each in gated if each.call_id}
    return [call_id for call_id, card in cards.items() if card is not None and card.checks]


def with_answers(state: State, answers: Sequence[MessageRef]) -> State:
    """Returns the state in which these tool messages have settled their calls, as if they had been rejected when they
    were planned."""
    if not answers:
        return state
    answer_ids = {answer.call_id: answer.id for answer in answers}

    def settle(call: CallRef) -> CallRef:
        answer_id = answer_ids.get(call.call_id)
        return call.model_copy(update={"settled": True, "answer_id": answer_id}) if answer_id else call

    def settle_all(message: MessageRef) -> JsonValue:
        return message.model_copy(update={"calls": tuple(map(settle, message.calls))}).model_dump(mode="json")

    *earlier, last = messages_of(state)
    settled: Patch = {
        "messages": [*(message.model_dump(mode="json") for message in earlier), settle_all(last)],
        "pending_tool_calls": [settle(call).model_dump(mode="json") for call in calls_of(state)],
    }
    if state["pending_round"]:
        settled["pending_round"] = settle_all(MessageRef.model_validate(state["pending_round"]))
    return {**state, **settled}


def _rules_for(state: State, plan: TurnPlan, open_round: OpenRound) -> RuleResult:
    """Returns what the rules say about the calls without a request."""
    if open_round.requests:
        return RuleResult(gated=gate_round(plan, open_round.without_request))
    return before_round(plan, open_round.without_request, {name: state[name] for name in COUNTERS})


@dataclass(frozen=True, slots=True)
class SettledRound:
    """The changes of the state after a round whose calls all have outcomes."""

    patch: Patch
    ran: tuple[AnsweredCall, ...]
    """The calls that were done, for the rules."""


def settle_round(
    state: State,
    plan: TurnPlan,
    calls: Sequence[CallRef],
    outcomes: Sequence[ToolOutcome],
    reviewed: Collection[str],
) -> SettledRound:
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
            ran.append(AnsweredCall(call, outcome.facts, counters))
    return SettledRound(patch, tuple(ran))


def _merge_field(before: JsonValue, now: JsonValue, after: JsonValue) -> JsonValue:
    """Merges a field that several calls of a round have changed, from its value before the round.

    Each call adds its own difference to a counter; 0 resets it. In lists, the entries of earlier calls remain.
    """
    if isinstance(before, list) and isinstance(now, list) and isinstance(after, list):
        return merge_lists(before, now, after)
    counts = [each for each in (before, now, after) if isinstance(each, int) and not isinstance(each, bool)]
    if len(counts) < 3 or after == 0:
        return after
    return counts[1] + counts[2] - counts[0]


def iteration_limit_patch(state: State) -> Patch:
    """Returns the end of a turn that has made all its rounds; empty if it can make another."""
    iteration, limit = number_of(state, "iteration"), number_of(state, "max_iterations")
    if iteration < limit:
        return {}
    problem = Problem(
        code="iteration_limit",
        message=f"the turn made {iteration} rounds of tool calls, its limit; raise limits.max_iterations",
    )
    return {"error": problem.model_dump(mode="json"), "status": "limited"}


def end_patch(problem: Problem) -> Patch:
    """Returns the patch that ends the run with this problem and drops the planned calls."""
    return {"error": problem.model_dump(mode="json"), "status": end_status(problem), "pending_tool_calls": []}


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
        plan, open_round = plan_of(state), round_of(state)
        rules = _rules_for(state, plan, open_round)
        if to_check := calls_to_check(plan, rules.gated):
            checked = await ports.tools.check(to_check)
            if checked.problem is not None:
                return end_patch(checked.problem)
            state = with_answers(state, checked.answers)
            open_round = round_of(state)
            rules = _rules_for(state, plan, open_round)
        if not open_round.requests:
            if pending := _pending_calls(plan, open_round.calls, rules.gated):
                ports.events.emit(TOOLS_PENDING, {"calls": pending})
            record_matches(ports, rules.matched)
            record_exemptions(ports, rules.exempted)
        if rules.abort is not None:
            return end_patch(_rule_abort_problem(rules.abort))
        if rules.gated:
            return self._open_gates(state, ports, plan, open_round, rules.gated)
        requests = [_call_request(state, plan, call) for call in open_round.to_run]
        outcomes = await ports.tools.run(requests, [*open_round.waiting.values()])
        return await _finish_round(state, ports, plan, open_round, outcomes)

    def _open_gates(
        self, state: State, ports: Ports, plan: TurnPlan, open_round: OpenRound, gated: Sequence[GatedCall]
    ) -> Patch:
        """Opens requests for the gated calls, and pending ones again. No call runs in this step."""
        others_can_run = len(open_round.without_request) > len(gated)
        unknown = calls_to_settle(open_round.calls, open_round.requests, {})
        requests = [*pending_approvals(plan, open_round.requests), *gated]
        return pause_round(
            state,
            ports,
            requests,
            unknown,
            [*open_round.done.values()],
            continues=self.ungated_first and others_can_run,
        )


async def _finish_round(
    state: State, ports: Ports, plan: TurnPlan, open_round: OpenRound, outcomes: Sequence[ToolOutcome]
) -> Patch:
    """Returns the patch of a round: a pause for its open calls, the end of the run, or all results."""
    new_outcomes = {outcome.call_id: outcome for outcome in outcomes}
    open_requests = [open_round.request_of(each.call_id) for each in outcomes if _is_waiting(each)]
    unknown = calls_to_settle(open_round.calls, open_requests, new_outcomes)
    problem = next((outcome.problem for outcome in outcomes if outcome.problem is not None), None)
    if unknown or (open_requests and problem is None):
        done = {**open_round.done, **{each.call_id: each for each in outcomes if each.state in SETTLED}}
        done_in_order = [done[call.call_id] for call in open_round.calls if call.call_id in done]
        return pause_round(state, ports, pending_approvals(plan, open_requests), unknown, done_in_order)
    if problem is not None:
        return end_patch(problem)
    missing = [
        call
        for call in open_round.calls
        if call.call_id in open_round.done and open_round.done[call.call_id].message is None
    ]
    if missing:  # the pause could not carry these outcomes; the ledger returns its stored results
        stored = await ports.tools.run([_call_request(state, plan, call) for call in missing])
        complete = {call_id: each for call_id, each in open_round.done.items() if each.message is not None}
        return await _finish_round(state, ports, plan, replace(open_round, done=complete), [*outcomes, *stored])
    done = {**open_round.done, **new_outcomes}
    all_outcomes = [_refused_outcome(call) if call.answer_id else done[call.call_id] for call in open_round.calls]
    return _apply_rules(
        state, ports, plan, settle_round(state, plan, open_round.calls, all_outcomes, open_round.reviewed)
    )


def _is_waiting(outcome: ToolOutcome) -> bool:
    """Returns whether the call waits for its reviewers: it has not started, or its approval was outdated."""
    return outcome.state is CallState.PLANNED and outcome.problem is None


def _pending_calls(plan: TurnPlan, calls: Sequence[CallRef], gated: Sequence[GatedCall]) -> list[JsonValue]:
    """Returns the calls that the event lists. Calls of the engine itself are not listed."""
    gated_ids = {call.call_id for call in gated}
    loaders = (LOAD_TOOLSET,) if plan.card(LOAD_SKILL) else (LOAD_TOOLSET, LOAD_SKILL)
    listed = [call for call in calls if call.tool not in loaders and not _is_memory_call(plan, call)]
    return [
        {"call_id": call.call_id, "tool": call.tool, "requires_approval": call.call_id in gated_ids} for call in listed
    ]


def _is_memory_call(plan: TurnPlan, call: CallRef) -> bool:
    card = plan.card(call.tool)
    return card is not None and is_memory_tool(card)


def _call_request(state: State, plan: TurnPlan, call: CallRef) -> ToolCallRequest:
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


def _refused_outcome(call: CallRef) -> ToolOutcome:
    """Returns the outcome of a call that was rejected when it was planned. It needs no activity."""
    answer = MessageRef(id=call.answer_id, role=Role.TOOL, call_id=call.call_id)
    return ToolOutcome(call_id=call.call_id, state=CallState.FAILED, message=answer)


def _apply_rules(state: State, ports: Ports, plan: TurnPlan, settled: SettledRound) -> Patch:
    """Returns the round's patch with the effect of the rules: the end of the run, a checkpoint, or nothing. A pause has
    priority over the limit."""
    result = after_round(plan, settled.ran)
    record_matches(ports, result.matched)
    after = {**state, **settled.patch}
    if result.abort is not None:
        return settled.patch | end_patch(_rule_abort_problem(result.abort))
    if result.gated:
        return settled.patch | pause_at_checkpoint(after, ports, result.gated)
    return settled.patch | iteration_limit_patch(after)


def _rule_abort_problem(match: RuleMatch) -> Problem:
    message = match.message or f"the rule {match.rule_id} ends the turn at a call to {match.tool}"
    return Problem(code="rule_abort", message=message)
