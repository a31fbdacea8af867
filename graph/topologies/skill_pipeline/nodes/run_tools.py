"""tool_node: gate a round whole before anything of it runs, or run it (S0-46, S0-52 to S0-59)."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from contracts.agents import TurnPlan
from contracts.errors import Problem
from contracts.events import TOOLS_PENDING
from contracts.messages import CallRef, MessageRef, Patch, Role
from contracts.people import GatedCall
from contracts.tools import CallState, ToolAsk, ToolOutcome
from graph.nodes.call_model import ended_by
from graph.nodes.reading import calls_of, error_of, messages_of, number_of, plan_of, requests_of
from graph.ports import Ports
from graph.spec import State
from graph.topologies.skill_pipeline.state import AWAITING_HITL, TOOL_WRITABLE
from policy.gate import RULE_OUTCOME_UNKNOWN, gate_round


@dataclass(frozen=True, slots=True)
class RunTools:
    """Run the pending calls, or pause for the people who must decide on them."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """A round that a verdict freed skips the gate (S0-57); the ledger still checks each call's approval."""
        if error_of(state) is not None:
            return {"pending_tool_calls": []}
        plan, calls = plan_of(state), calls_of(state)
        decided = {request.call_id for request in requests_of(state, "pending_mutation")}
        gated = gate_round(plan, [call for call in calls if not call.settled and call.call_id not in decided])
        if not decided:
            ports.events.emit(TOOLS_PENDING, {"calls": _pending(calls, gated)})
        if gated:
            return _pause(state, ports, gated, [])
        ran = iter(await ports.tools.run([_ask(state, plan, call) for call in calls if not call.answer_id]))
        outcomes = [_refused(call) if call.answer_id else next(ran) for call in calls]
        lost = {outcome.call_id for outcome in outcomes if outcome.state is CallState.OUTCOME_UNKNOWN}
        if lost:
            unknown = [
                GatedCall(call_id=call.call_id, tool=call.tool, rule=RULE_OUTCOME_UNKNOWN)
                for call in calls
                if call.call_id in lost
            ]
            return _pause(state, ports, [], unknown)
        return _settled(state, plan, calls, outcomes)


def _pending(calls: Sequence[CallRef], gated: Sequence[GatedCall]) -> list[JsonValue]:
    needing = {call.call_id for call in gated}
    return [
        {"call_id": call.call_id, "tool": call.tool, "requires_approval": call.call_id in needing} for call in calls
    ]


def _ask(state: State, plan: TurnPlan, call: CallRef) -> ToolAsk:
    card = plan.card(call.tool)
    if card is None:
        return ToolAsk(call_id=call.call_id, tool=call.tool)
    slice_of_state = {name: state[name] for name in card.wants_state if name in state}
    return ToolAsk(call_id=call.call_id, tool=call.tool, timeout_seconds=card.timeout_seconds, state=slice_of_state)


def _refused(call: CallRef) -> ToolOutcome:
    """What a call that could not run came to where it was planned: it costs no activity."""
    answer = MessageRef(id=call.answer_id, role=Role.TOOL, call_id=call.call_id)
    return ToolOutcome(call_id=call.call_id, state=CallState.FAILED, message=answer)


def _pause(state: State, ports: Ports, gated: Sequence[GatedCall], unknown: Sequence[GatedCall]) -> Patch:
    """Open every request at once, strip the round, dispatch nothing (S0-53 to S0-56)."""
    snapshot: dict[str, JsonValue] = {
        "tokens_used": state["tokens_used"],
        "cost_microusd": state["cost_microusd"],
        "injected_skill_ids": state["injected_skill_ids"],
        "recent_entity_context": state["recent_entity_context"],
    }
    asked = ports.people.ask(gated, unknown, snapshot)
    messages = messages_of(state)
    gated_round = messages[-1]
    requests: list[JsonValue] = [request.model_dump(mode="json") for request in asked]
    # A round that pauses for an unknown outcome has been decided on: its approvals are not asked for again.
    before: list[JsonValue] = [
        request.model_dump(mode="json") for request in requests_of(state, "pending_mutation") if request not in asked
    ]
    return {
        "status": AWAITING_HITL,
        "hitl_required": True,
        "hitl_checkpoint_type": "before_tool_call" if gated else "outcome_unknown",
        "hitl_approval_id": asked[0].request_id if asked else None,
        "pending_mutation": [*before, *requests],
        "pending_requests": requests,
        "pending_round": gated_round.model_dump(mode="json"),
        "pending_tool_calls": [],
        "messages": [message.model_dump(mode="json") for message in messages[:-1]],
    }


def _settled(state: State, plan: TurnPlan, calls: Sequence[CallRef], outcomes: Sequence[ToolOutcome]) -> Patch:
    problem = next((outcome.problem for outcome in outcomes if outcome.problem is not None), None)
    if problem is not None:
        return _ended(problem)
    answers: list[MessageRef] = [outcome.message for outcome in outcomes if outcome.message is not None]
    iteration = number_of(state, "iteration") + 1
    patch: Patch = {
        "messages": [message.model_dump(mode="json") for message in [*messages_of(state), *answers]],
        "pending_tool_calls": [],
        "pending_mutation": None,
        "pending_round": None,
        "hitl_required": False,
        "hitl_approval_id": None,
        "iteration": iteration,
    }
    tools = {call.call_id: plan.card(call.tool) for call in calls}
    for outcome in outcomes:
        card = tools.get(outcome.call_id)
        writable = TOOL_WRITABLE.intersection(card.wants_state) if card else ()
        # A tool may write fields that it asked to read and that are a tool's to write: no budget, no status.
        patch |= {name: value for name, value in outcome.patch.items() if name in writable}
    most = number_of(state, "max_iterations")
    if iteration >= most:
        over = Problem(
            code="iteration_limit",
            message=f"the turn made {iteration} rounds of tool calls, its limit; raise limits.max_iterations",
        )
        patch |= {"error": over.model_dump(mode="json"), "status": "limited"}
    return patch


def _ended(problem: Problem) -> Patch:
    return {"error": problem.model_dump(mode="json"), "status": ended_by(problem), "pending_tool_calls": []}
