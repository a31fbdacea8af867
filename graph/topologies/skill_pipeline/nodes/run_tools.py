"""tool_node: gate a round whole before anything of it runs, or run it; then ask the rules of its outcomes (S0-46,
S0-52 to S0-59, S0-65)."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from contracts.agents import TurnPlan
from contracts.errors import Problem
from contracts.events import TOOLS_PENDING
from contracts.messages import CallRef, MessageRef, Patch, Role
from contracts.people import GatedCall, RequestKind
from contracts.tools import CallState, ToolAsk, ToolOutcome
from graph.nodes.reading import calls_of, error_of, plan_of, requests_of
from graph.ports import Ports
from graph.spec import State
from graph.topologies.skill_pipeline.nodes.outcomes import Round, ended, over_limit, settled
from graph.topologies.skill_pipeline.nodes.pause import at_checkpoint, record_fires, stripped
from policy.conditions import COUNTERS
from policy.firing import Ruled, after_round, asked_paths, before_round
from policy.gate import RULE_OUTCOME_UNKNOWN, gate_round
from policy.rules import Fire


@dataclass(frozen=True, slots=True)
class RunTools:
    """Run the pending calls, or pause for the people who must decide on them."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """A round that a verdict freed skips the gate (S0-57); the ledger still checks each call's approval."""
        if error_of(state) is not None:
            return {"pending_tool_calls": []}
        plan, calls = plan_of(state), calls_of(state)
        requests = requests_of(state, "pending_mutation")
        decided = {request.call_id for request in requests}
        undecided = [call for call in calls if not call.settled and call.call_id not in decided]
        if decided:
            ruled = Ruled(gated=gate_round(plan, undecided))
        else:
            ruled = before_round(plan, undecided, {name: state[name] for name in COUNTERS})
            ports.events.emit(TOOLS_PENDING, {"calls": _pending(calls, ruled.gated)})
            record_fires(ports, ruled.fired)
        if ruled.abort is not None:
            return ended(_aborted(ruled.abort))
        if ruled.gated:
            return stripped(state, ports, ruled.gated, [])
        outcomes = await _run(state, ports, plan, calls)
        lost = {outcome.call_id for outcome in outcomes if outcome.state is CallState.OUTCOME_UNKNOWN}
        if lost:
            unknown = [
                GatedCall(call_id=call.call_id, tool=call.tool, rule=RULE_OUTCOME_UNKNOWN)
                for call in calls
                if call.call_id in lost
            ]
            return stripped(state, ports, [], unknown)
        problem = next((outcome.problem for outcome in outcomes if outcome.problem is not None), None)
        if problem is not None:
            return ended(problem)
        reviewed = {request.call_id for request in requests if request.kind is RequestKind.CHECKPOINT}
        return _looked_at(state, ports, plan, settled(state, plan, calls, outcomes, reviewed))


def _pending(calls: Sequence[CallRef], gated: Sequence[GatedCall]) -> list[JsonValue]:
    needing = {call.call_id for call in gated}
    return [
        {"call_id": call.call_id, "tool": call.tool, "requires_approval": call.call_id in needing} for call in calls
    ]


async def _run(state: State, ports: Ports, plan: TurnPlan, calls: Sequence[CallRef]) -> list[ToolOutcome]:
    ran = iter(await ports.tools.run([_ask(state, plan, call) for call in calls if not call.answer_id]))
    return [_refused(call) if call.answer_id else next(ran) for call in calls]


def _ask(state: State, plan: TurnPlan, call: CallRef) -> ToolAsk:
    card = plan.card(call.tool)
    if card is None:
        return ToolAsk(call_id=call.call_id, tool=call.tool)
    return ToolAsk(
        call_id=call.call_id,
        tool=call.tool,
        timeout_seconds=card.timeout_seconds,
        state={name: state[name] for name in card.wants_state if name in state},
        paths=asked_paths(plan, call.tool),
    )


def _refused(call: CallRef) -> ToolOutcome:
    """What a call that could not run came to where it was planned: it costs no activity."""
    answer = MessageRef(id=call.answer_id, role=Role.TOOL, call_id=call.call_id)
    return ToolOutcome(call_id=call.call_id, state=CallState.FAILED, message=answer)


def _looked_at(state: State, ports: Ports, plan: TurnPlan, done: Round) -> Patch:
    """The round's patch, with what the rules make of it: its end, a checkpoint, or nothing. A pause comes before the
    limit (S0-06)."""
    ruled = after_round(plan, done.ran)
    record_fires(ports, ruled.fired)
    after = {**state, **done.patch}
    if ruled.abort is not None:
        return done.patch | ended(_aborted(ruled.abort))
    if ruled.gated:
        return done.patch | at_checkpoint(after, ports, ruled.gated)
    return done.patch | over_limit(after)


def _aborted(fired: Fire) -> Problem:
    message = fired.message or f"the rule {fired.rule_id} ends the turn at a call to {fired.tool}"
    return Problem(code="rule_abort", message=message)
